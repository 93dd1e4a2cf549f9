"""`ranp evaluate`: the metrics of a trained network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ranp.cli._common import say, show, show_json
from ranp.cli._options import JsonOption, QuietOption
from ranp.cli.train import FactoryOption
from ranp.user_code import load_object

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
WeightsOption = Annotated[
    Literal["best", "last"], typer.Option(help="Weights of the best epoch, or the last ones.")
]


def command(
    run: RunArgument,
    data: Annotated[
        Path | None, typer.Option(help="A data set of the same kind, if not the run's own.")
    ] = None,
    split: Annotated[
        str, typer.Option(help="train, validation or (ShapeNet) test.")
    ] = "validation",
    weights: WeightsOption = "best",
    network: FactoryOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Evaluate a run's network."""
    from rich.console import Group

    from ranp.report.terminal import table
    from ranp.training.inference import evaluate_run

    result = evaluate_run(
        run,
        data=data,
        split=split,
        weights=weights,
        factory=load_object(network, "network") if network else None,
    )
    if as_json:
        show_json(result)
        return
    rows = table()
    rows.add_column("metric")
    rows.add_column("value", justify="right")
    for name, value in result["metrics"].items():
        rows.add_row(name, f"{value:.4f}")
    show(Group(f"{run}, {result['cases']} cases of {split}, {weights} weights", "", rows))
    say(quiet, f"Next: ranp predict {run} INPUT OUT")
