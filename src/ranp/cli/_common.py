"""What all commands share: networks and plans by name, output, progress."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ranp.errors import UsageError
from ranp.user_code import call_factory

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import nn

    from ranp.cli._options import Output
    from ranp.models import NetworkSpec
    from ranp.pipeline import Result
    from ranp.slimming import Plan


@dataclass(frozen=True)
class Network:
    """A network that was named on the command line.

    Attributes:
        name: As it was named.
        model: A new instance.
        input_shape: What it is traced with.
        spec: What is known of it, if it is one of the paper's.
    """

    name: str
    model: nn.Module
    input_shape: tuple[int, ...]
    spec: NetworkSpec | None


def load_network(name: str, input_text: str | None) -> Network:
    """Builds a network of the registry, or calls the user's own factory.

    Args:
        name: Of the network, or of the factory.
        input_text: Shape of its input; that of a sample gets a batch of 1.
    """
    return _at(name, *_build(name), parse_shape(input_text))


def load_sample_network(
    name: str, input_text: str | None, batch: int | None
) -> tuple[Network, int | None]:
    """Builds a network for one sample of what it is trained with, and returns the batch as well.

    Args:
        name: Of the network, or of the factory.
        input_text: Shape of a sample, or of a batch.
        batch: Samples of a batch, if they were given.
    """
    from ranp.graph import split_batch

    model, spec = _build(name)
    shape = parse_shape(input_text)
    if shape is not None:
        batch, sample = split_batch(model, shape, batch)
        shape = (1, *sample)
    return _at(name, model, spec, shape), batch


def _build(name: str) -> tuple[nn.Module, NetworkSpec | None]:
    from torch import nn

    from ranp.models import find_network, network_names

    if ":" not in name:
        spec = find_network(name)
        if not spec.input_shape:
            raise UsageError(
                f"network '{name}' is a family whose options a recipe gives; "
                f"name one of {', '.join(network_names())}"
            )
        return spec.build(), spec
    model = call_factory(name, "network")
    if not isinstance(model, nn.Module):
        raise UsageError(f"network '{name}' must be an nn.Module, got {type(model).__name__}")
    return model, None


def _at(
    name: str, model: nn.Module, spec: NetworkSpec | None, shape: tuple[int, ...] | None
) -> Network:
    from ranp.graph import with_batch

    if spec is None and shape is None:
        raise UsageError(f"say what input '{name}' takes, such as --input 1,1,64,64,64")
    if shape is None:
        assert spec is not None
        return Network(name, model, spec.input_shape, spec)
    shape = with_batch(model, shape)
    if spec is not None and len(shape) != len(spec.input_shape):
        raise UsageError(
            f"input {shape} has {len(shape)} dimensions, and {name} takes "
            f"{len(spec.input_shape)}: batch, channels, then space, such as "
            f"{','.join(map(str, spec.input_shape))}"
        )
    if spec is not None and shape[1] != spec.input_shape[1]:
        raise UsageError(
            f"input {shape} has {shape[1]} channels, and {name} takes {spec.input_shape[1]}"
        )
    return Network(name, model, shape, spec)


def load_planned(
    path: Path, network: str | None = None, input_text: str | None = None
) -> tuple[Plan, Network]:
    """A plan, and the full network that it is for.

    Args:
        path: The plan's file.
        network: The user's own network, named again: a stored file alone must not import code.
        input_text: Its input, if not the one that the plan was made at.
    """
    from ranp.slimming import Plan

    plan = Plan.load(path)
    name = network or plan.network
    if name is None:
        raise UsageError(
            f"plan '{path}' was made in Python and does not say which network it is for; "
            "name it: --network package.module:factory"
        )
    if network is None and ":" in name:
        raise UsageError(
            f"the network is code of yours; name it again: --network {name} "
            "(a stored file alone must not import code)"
        )
    (stored,) = plan.inputs["args"]
    return plan, load_network(name, input_text or ",".join(map(str, stored["tensor"])))


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """A shape from comma-separated numbers."""
    if text is None:
        return None
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"'{text}' is not a shape; write 1,1,64,64,64") from error
    if min(shape) < 1:
        raise UsageError(f"input shape {shape} has a size below 1")
    return shape


def show(renderable: RenderableType) -> None:
    """Prints a result to stdout."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=max(console.width, 100))
    console.print(renderable)


def show_json(value: Any) -> None:
    """Prints a result to stdout as JSON."""
    typer.echo(json.dumps(value, indent=1, allow_nan=False))


def say(quiet: bool, message: str) -> None:
    """A message to stderr."""
    if not quiet:
        typer.echo(message, err=True)


def is_given(context: typer.Context, parameter: str) -> bool:
    """Whether an option was given, and is not the default."""
    return getattr(context.get_parameter_source(parameter), "name", "") == _GIVEN


def next_command(
    context: typer.Context,
    name: str,
    *arguments: object,
    without: Iterable[str] = (),
    **options: Any,
) -> str:
    """A command to go on with, to be pasted into a shell.

    It has every option that was given to this command and that it knows too, so that it speaks of
    the same thing; but for those that say where and how results are written.

    Args:
        context: Of the command that is running.
        name: Of the next one.
        arguments: In their order.
        without: Options, by the name of their parameter, that are not taken over.
        options: Others, by the name of their parameter, in the place of those that were given.
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
        for each in value if isinstance(value, (list, tuple)) else [value]:
            words += [option, str(each)]
    return shlex.join(words)


def prune_hint(context: typer.Context, network: Network) -> str:
    """A command that prunes the network; for one of the user's own, by a method without data."""
    if network.spec is not None:
        return next_command(context, "prune", network.name, flops="10%")
    following = next_command(context, "prune", network.name, flops="10%", method="thin")
    return f"{following}\nTo score with your data: --data package.module:loader, no --method."


_GIVEN = "COMMANDLINE"
"""What click calls an option that is not the default."""


def ensure_out(out: Path | None) -> None:
    """Create a command's directory, if it has one, before any work is done."""
    if out is not None:
        from ranp.files import ensure_directory

        ensure_directory(out)


def show_result(
    output: Output, result: Result, out: Path | None, data: str | None, **more: Any
) -> None:
    """Print a pruned network, and write it with its page where a directory was given.

    Args:
        output: How to print.
        result: The pruned network.
        out: The directory.
        data: What the network was scored with.
        more: What else is printed as JSON.
    """
    if out is not None:
        from ranp.report.page import write_report

        command = shlex.join(["ranp", *sys.argv[1:]])
        page = write_report(result.save(out, command=command, data=data))
    if output.as_json:
        show_json({**result.summary(), **more})
    else:
        show(result)
    if out is None:
        say(output.quiet, "Next: the same with --out DIR keeps plan and weights.")
    else:
        say(
            output.quiet,
            f"Plan and fresh weights in {out}. Look at {page}. Next, in Python: "
            f"ranp.Plan.load({str(out / 'plan.json')!r}).apply(model)",
        )
