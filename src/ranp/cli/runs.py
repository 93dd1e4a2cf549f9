"""`ranp runs`: the training runs there are, and what came out of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ranp.cli._options import Output, grouped


@grouped
def command(
    output: Output,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory that contains the runs.")
    ] = Path("runs"),
) -> None:
    """List runs with their results."""
    from ranp.report.terminal import numbers, table
    from ranp.training.listing import list_runs

    runs = list_runs(directory)
    results = numbers("mean", "std", "GFLOPs", "seconds")
    title = f"Runs in {directory}"
    rows = table("run", "network", *numbers("epochs"), "metric", *results, title=title)
    for run in runs:
        rows.add_row(
            run["name"],
            run["method"] or "full",
            f"{run['done']}/{run['epochs']}",
            run["goal"] or run["state"],
            _number(run["mean"], ".4f"),
            _number(run["std"], ".4f"),
            _number(run["gflops"], ".2f"),
            _number(run["seconds"], ".0f"),
        )
    output.show(runs, rows)
    output.say(f"Next: ranp evaluate {directory / runs[0]['name'] if runs else 'RUN'}")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
