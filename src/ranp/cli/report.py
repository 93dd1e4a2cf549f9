"""`ranp report`: the page of a run, from its stored files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ranp.cli._options import Output, QuietOption


def command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's directory, or a plan (plan.json).")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="HTML file to write; by default report.html next to the run's files."
        ),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Write a report as one HTML file that works offline."""
    from ranp.report.page import write_report

    page = write_report(run, out)
    typer.echo(str(page))
    Output(quiet=quiet).say(f"Next: open {page} in a browser; it works offline and prints well.")
