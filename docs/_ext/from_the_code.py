"""Reference pages that are written by the code itself: the command line, and the methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class CommandLine(SphinxDirective):
    """Every command with its arguments and options, from the command line's own definitions."""

    def run(self) -> list[nodes.Node]:
        """Called by docutils."""
        from ranp.cli import app

        text = "\n\n".join(_commands(app, "ranp"))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class Methods(SphinxDirective):
    """The table of methods."""

    def run(self) -> list[nodes.Node]:
        """Called by docutils."""
        from ranp import METHODS

        rows = [
            "| method | importance | balanced, Eq. 9 | reweighted, Eq. 10 | selection | data |",
            "|---|---|---|---|---|---|",
        ]
        for method in METHODS.values():
            cells = (
                f"`{method.name}`: {method.about}",
                method.criterion.label if method.criterion else "",
                "yes" if method.balance else "",
                method.resource or "",
                method.selection.name,
                "yes" if method.needs_data else "",
            )
            rows.append("| " + " | ".join(cells) + " |")
        return self.parse_text_to_nodes("\n".join(rows))


def _commands(app: typer.Typer, path: str) -> Iterator[str]:
    """Sections in Markdown, one for each command.

    Commands are read as functions with annotated parameters: their public form, and the same in
    all versions of typer.
    """
    for command in app.registered_commands:
        function = command.callback
        name = f"{path} {command.name or function.__name__.replace('_', '-')}"
        parameters = _parameters(function)
        yield f"## `{name}`"
        yield inspect.getdoc(function) or ""
        usage = [p.usage for p in parameters if p.usage]
        yield f"```console\n$ {' '.join([name, *usage, '[OPTIONS]'])}\n```"
        if parameters:
            rows = [p.row for p in parameters]
            yield "\n".join(["| option | description | default |", "|---|---|---|", *rows])
    for group in app.registered_groups:
        yield from _commands(group.typer_instance, f"{path} {group.name}")


@dataclass(frozen=True)
class _Parameter:
    """An argument or option, as it stands in the usage line and in the table."""

    usage: str
    row: str


def _parameters(function: Callable[..., None]) -> list[_Parameter]:
    hints = get_type_hints(function, include_extras=True)
    parameters = [  # the context is typer's, not the user's
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if hints[parameter.name] is not typer.Context
    ]
    # Arguments come first in a call, wherever they stand in the function.
    described = [_parameter(p, *get_args(hints[p.name])) for p in parameters]
    return sorted(described, key=lambda p: p.usage.startswith("-") or not p.usage)


def _parameter(parameter: inspect.Parameter, kind: Any, info: Any) -> _Parameter:
    required = parameter.default is inspect.Parameter.empty
    if isinstance(info, typer.models.ArgumentInfo):
        name = info.metavar or parameter.name.upper()
        usage, shown = name if required else f"[{name}]", f"`{name}`"
    else:
        value = "" if kind is bool else f" {info.metavar or _value(kind)}"
        flag = f"--{parameter.name.replace('_', '-')}"
        # In an annotation, the first name takes the place of a default.
        given = [n for n in (info.default, *(info.param_decls or ())) if str(n).startswith("-")]
        names = given or ([flag, f"--no-{flag[2:]}"] if kind is bool else [flag])
        usage = f"{names[0]}{value}" if required else ""
        shown = ", ".join(f"`{n}{value}`" for n in names)
    default = "required" if required else _default(parameter.default)
    cells = (cell.replace("|", r"\|") for cell in (shown, info.help or "", default))
    return _Parameter(usage, f"| {' | '.join(cells)} |")


def _value(kind: Any) -> str:
    """What an option's value is called."""
    origin, inner = get_origin(kind), [k for k in get_args(kind) if k is not type(None)]
    if origin is Literal:
        return "|".join(map(str, inner))
    if inner:  # X | None, or list[X]
        return _value(inner[0])
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def _default(value: Any) -> str:
    return "" if value is None or value is False else f"`{value}`"


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("command-line", CommandLine)
    app.add_directive("methods", Methods)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
