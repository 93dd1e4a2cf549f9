"""`ranp predict`: a prediction for one input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ranp.cli._options import Output, grouped
from ranp.cli._training import RunArgument, TrainedOptions


@grouped
def command(
    run: RunArgument,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="A NIfTI volume, a folder with a case's modalities, a point cloud, or a video.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Labels as .nii.gz, labelled points, or the top-5 classes as JSON."
        ),
    ],
    trained: TrainedOptions,
    output: Output,
    category: Annotated[
        str | None, typer.Option(help="A shape's category, if known: only its parts are chosen.")
    ] = None,
) -> None:
    """Predict one volume, point cloud or video."""
    from ranp.training.inference import predict

    summary = predict(run, source, out, category=category, **trained.keywords())
    where = {"run": str(run), "input": str(source), "output": str(out)}
    readable = "\n".join(_describe(out, name, value) for name, value in summary.items())
    output.show({**where, **summary}, readable)
    output.say(f"Next: ranp evaluate {run}")


def _describe(out: Path, name: str, value: Any) -> str:
    """Return an entry of the summary that a data set's `predict` returns, as text."""
    if isinstance(value, list):
        return "\n".join(f"{row['probability']:.3f}  {row['class']}" for row in value)
    if isinstance(value, dict):
        value = ", ".join(f"{count} of label {label}" for label, count in value.items())
    return f"{out}: {name}: {value}"
