"""`ranp predict`: a prediction for one input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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

    result = predict(run, source, out, category=category, **trained.keywords())
    if "top5" in result:
        shown = "\n".join(f"{row['probability']:.3f}  {row['class']}" for row in result["top5"])
    else:
        counted = "voxels" if "voxels" in result else "points"
        labels = ", ".join(f"{n} of label {label}" for label, n in result[counted].items())
        shown = f"{out}: {counted}: {labels}"
    output.show(result, shown)
    output.say(f"Next: ranp evaluate {run}")
