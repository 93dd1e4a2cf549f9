"""`ranp evaluate`: the metrics of a trained network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ranp.cli._options import Output, SplitOption, grouped
from ranp.cli._training import RunArgument, TrainedOptions


@grouped
def command(
    run: RunArgument,
    trained: TrainedOptions,
    output: Output,
    data: Annotated[
        Path | None, typer.Option(help="A data set of the same kind, if not the run's own.")
    ] = None,
    split: SplitOption = "validation",
) -> None:
    """Evaluate a run's network."""
    from rich.console import Group

    from ranp.report.terminal import numbers, table
    from ranp.training.inference import evaluate_run

    result = evaluate_run(run, data=data, split=split, **trained.keywords())
    rows = table("metric", *numbers("value"))
    for name, value in result["metrics"].items():
        rows.add_row(name, f"{value:.4f}")
    what = f"{run}, {result['cases']} cases of {split}, {trained.weights} weights"
    output.show(result, Group(what, "", rows))
    output.say(f"Next: ranp predict {run} INPUT OUT")
