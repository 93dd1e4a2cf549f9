"""`ranp export`: a pruned or trained network as one file for another machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ranp.cli._networks import load_planned, parse_shape
from ranp.cli._options import InputOption, Output, grouped
from ranp.cli._training import TrainedOptions
from ranp.display import MIB
from ranp.errors import RanpError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from torch import nn

    from ranp.exporting import Exported
    from ranp.slimming import Plan

    Shape = tuple[int, ...]
    Opened = tuple[nn.Module, Shape, Plan | None]

_NEXT = {
    "onnx": """\
    import numpy, onnxruntime
    network = onnxruntime.InferenceSession({path!r})
    outputs = network.run(None, {{{name!r}: numpy.zeros({shape}, numpy.float32)}})""",
    "pt2": """\
    import torch
    network = torch.export.load({path!r}).module()
    outputs = network(torch.zeros({shape}))""",
}


@grouped
def command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="A directory of `ranp prune --out`, or a run of `ranp train`."
        ),
    ],
    to: Annotated[
        Path, typer.Option("--to", help="The file: .onnx for any runtime, .pt2 for PyTorch.")
    ],
    trained: TrainedOptions,
    output: Output,
    input_shape: InputOption = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Let the file take other batch and volume sizes.")
    ] = False,
    time: Annotated[
        bool, typer.Option("--time", help="Time the file and PyTorch alternately.")
    ] = False,
    repetitions: Annotated[int, typer.Option(min=1, help="Timed runs of each.")] = 7,
) -> None:
    """Export a network to a file that runs without its code and without ranp."""
    from rich.console import Group

    from ranp.exporting import export, find_format, time_exported
    from ranp.report.speed import times_table

    find_format(to)
    is_run = (source / "config.json").is_file()
    open_network = _open_run if is_run else _open_pruned
    model, shape, plan = open_network(source, trained, parse_shape(input_shape))
    output.say(f"Writing {to}, and comparing it with the network.")
    exported = export(model, shape, to, dynamic=dynamic, plan=plan)
    record: dict[str, Any] = exported.to_dict()
    parts: list[RenderableType] = [_facts(exported)]
    if time:
        output.say(f"Measuring at {' x '.join(map(str, shape))}.")
        times = time_exported(model, exported, shape, repetitions=repetitions)
        record["times"] = times
        parts += ["", times_table(times)]
        before, after = (run["seconds"] for run in times["runs"].values())
        if exported.format == "onnx" and after > before:
            output.say("onnxruntime is slower than PyTorch here; try OpenVINO, which reads .onnx.")
    output.show(record, Group(*parts))
    if not is_run:
        output.say(f"The weights are those in {source}: fresh ones, unless you trained them.")
    (name,) = exported.inputs
    code = _NEXT[exported.format].format(path=str(to), name=name, shape=shape)
    output.say(f"Next, on any machine and without ranp:\n{code}")


def _open_pruned(directory: Path, trained: TrainedOptions, shape: Shape | None) -> Opened:
    from ranp.slimming import load_weights

    if not (directory / "plan.json").is_file():
        what = "is not a directory" if not directory.is_dir() else "holds no plan.json and no run"
        raise UsageError(
            f"'{directory}' {what}: name what `ranp prune --out` or `ranp train` wrote"
        )
    plan, net = load_planned(directory / "plan.json", trained.network, shape)
    model = plan.apply(net.model)
    load_weights(model, directory / "weights.safetensors")
    return model, net.input_shape, plan


def _open_run(directory: Path, trained: TrainedOptions, shape: Shape | None) -> Opened:
    from ranp.training.inference import load_run, validation_shape
    from ranp.training.preparation import stored_plan

    job, model = load_run(directory, **trained.keywords())
    try:
        shape = shape or validation_shape(job)
    except RanpError as error:
        raise UsageError(
            f"{error}; without the run's data, give the input shape: --input 1,1,64,64,64"
        ) from error
    return model, shape, stored_plan(directory)


def _facts(exported: Exported) -> Table:
    from rich.text import Text

    from ranp.report.terminal import table

    facts = table("", "")
    facts.show_header = False
    versions = {n: v for n, v in exported.versions.items() if n != "ranp"}
    shown = {
        "file": str(exported.path),
        "size": f"{exported.file_bytes / MIB:.2f} MiB",
        "parameters": f"{exported.parameters:,}",
        **{f"input {name}": " x ".join(map(str, s)) for name, s in exported.inputs.items()},
        "largest difference": f"{exported.difference:.1e} of the largest output",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    for name, value in shown.items():
        facts.add_row(name, Text(value))
    return facts
