"""Output that all commands share: results, messages, the next command."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ranp.cli._networks import Network
    from ranp.cli._options import Output
    from ranp.results import Result


def show(readable: RenderableType) -> None:
    """Print a result to stdout; plain text is not wrapped."""
    if isinstance(readable, str):
        typer.echo(readable)
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=max(console.width, 100))
    console.print(readable)


def show_json(value: Any) -> None:
    """Print a result to stdout as JSON."""
    typer.echo(json.dumps(value, indent=1, allow_nan=False))


def is_given(context: typer.Context, parameter: str) -> bool:
    """Return whether an option was given, and is not the default."""
    return getattr(context.get_parameter_source(parameter), "name", "") == "COMMANDLINE"


def next_command(
    context: typer.Context,
    name: str,
    *arguments: object,
    without: Iterable[str] = (),
    **options: Any,
) -> str:
    """Return a command to go on with, to be pasted into a shell.

    It takes over every option of the running command that it has too, except those that say where
    and how results are written, and `without`; `options` are set by name of their parameter.
    """
    left_out = {"out", "as_json", "quiet", *without}
    given = {
        key: value
        for key, value in context.params.items()
        if key not in left_out and is_given(context, key)
    }
    given.update(options)
    words = ["ranp", name, *map(str, arguments)]
    commands: Mapping[str, Any] = getattr(context.find_root().command, "commands", {})
    for parameter in commands[name].params:
        value = given.get(parameter.name)
        if parameter.param_type_name != "option" or value is None or value is False:
            continue
        option = max(parameter.opts, key=len)
        if value is True:
            words.append(option)
            continue
        for item in value if isinstance(value, (list, tuple)) else [value]:
            words += [option, str(item)]
    return shlex.join(words)


def prune_hint(context: typer.Context, network: Network) -> str:
    """Return a command that prunes the network, without data if no loader is known."""
    if network.spec is not None or network.batches is not None:
        return next_command(context, "prune", network.name, flops="10%")
    following = next_command(context, "prune", network.name, flops="10%", method="thin")
    return f"{following}\nTo score with your data: --data package.module:loader, no --method."


def command_line() -> str:
    """Return the running command, to be kept with its results."""
    return shlex.join(["ranp", *sys.argv[1:]])


def ensure_out(out: Path | None) -> None:
    """Create a command's directory, if it has one, before any work is done."""
    if out is not None:
        from ranp.files import ensure_directory

        ensure_directory(out)


def show_result(
    output: Output, result: Result, out: Path | None, data: str | None, **more: Any
) -> None:
    """Print a pruned network and what it was scored with; with a directory, write it and its page.

    `more` are further keys of the JSON.
    """
    if out is not None:
        from ranp.report.page import write_report

        page = write_report(result.save(out, command=command_line(), data=data))
    output.show({**result.summary(), **more}, result)
    if out is None:
        output.say("Next: add --out DIR to keep plan and weights.")
    else:
        output.say(
            f"Plan and fresh weights in {out}. Open {page}. Next, in Python: "
            f"ranp.Plan.load({str(out / 'plan.json')!r}).apply(model)"
        )
