"""`ranp data`: write synthetic data sets, verify real ones, look at either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ranp.cli._options import Output, SplitOption, grouped

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from ranp.datasets.verification import Report

app = typer.Typer(help="Synthetic data, verification and pictures.", no_args_is_help=True)

_SHOWN_PROBLEMS = 50

_KIND = typer.Argument(
    metavar="KIND", help="shapenet, brats, ucf101, hippocampus, decathlon, volumes or clips."
)
_DIRECTORY = typer.Argument(metavar="DIR", help="The data set's directory.")


@app.command()
@grouped
def synth(
    kind: Annotated[str, _KIND],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new or empty directory.")],
    output: Output,
    cases: Annotated[int, typer.Option(help="Number of cases.")] = 64,
    size: Annotated[
        int, typer.Option(help="Edge of volumes, height of frames; no effect on shapes.")
    ] = 64,
    classes: Annotated[
        int | None, typer.Option(help="Classes, 10 by default (ucf101, clips and volumes).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed; the same seed writes the same files.")] = 0,
) -> None:
    """Write a synthetic data set in a real one's format."""
    from ranp.datasets import synthesise

    with _progress(output, f"writing {kind}"):
        synthesise(kind, out, cases=cases, size=size, seed=seed, classes=classes)
    record = {"kind": kind, "directory": str(out), "cases": cases, "seed": seed}
    output.show(record, f"{cases} synthetic {kind} cases in {out}")
    output.say(f"Next: ranp data verify {kind} {out}")


@app.command()
@grouped
def verify(
    kind: Annotated[str, _KIND],
    directory: Annotated[Path, _DIRECTORY],
    output: Output,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one per core.")
    ] = None,
) -> None:
    """Read every case once and list all problems; exit code 4 if there are any."""
    from ranp import datasets

    with _progress(output, f"verifying {kind}") as (bar, task):
        report = datasets.verify(
            kind,
            directory,
            workers=workers,
            started=lambda total: bar.update(task, total=total),
            progress=lambda: bar.advance(task),
        )
    output.show(report.to_json(), _describe(report))
    if not report.ok:
        output.say(f"Next: fix these files, then run again: ranp data verify {kind} {directory}")
        raise typer.Exit(4)
    output.say(f"Next: ranp data show {kind} {directory}")


@app.command()
@grouped
def show(
    kind: Annotated[str, _KIND],
    directory: Annotated[Path, _DIRECTORY],
    output: Output,
    out: Annotated[Path, typer.Option(help="The PNG file to write.")] = Path("cases.png"),
    cases: Annotated[int, typer.Option(min=1, help="How many cases to draw.")] = 4,
    split: SplitOption = "train",
    size: Annotated[
        int | None, typer.Option(help="Edge of grids, crops or frames; the kind's own by default.")
    ] = None,
) -> None:
    """Draw a few cases, evenly spread over a split, as the network sees them."""
    from ranp.datasets import draw_cases, find_dataset, open_cases

    opened = open_cases(kind, directory, split, size=size)
    with _progress(output, f"drawing {kind}"):
        drawn = draw_cases(kind, opened, cases, out)
    record = {"kind": kind, "picture": str(out), "cases": drawn}
    output.show(record, f"{out}: {', '.join(drawn)}")
    output.say(f"Next: ranp train {find_dataset(kind).recipe} --data {directory}")


@contextmanager
def _progress(output: Output, title: str) -> Iterator[tuple[Progress, TaskID]]:
    """Show a progress bar of one task, whose length is not known yet."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    from ranp.display import progress_bar

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns, quiet=output.quiet) as bar:
        yield bar, bar.add_task(title, total=None)


def _describe(report: Report) -> str:
    lines = [f"{report.kind} in {report.directory}: {report.cases} cases"]
    for heading, counts in report.counts.items():
        lines.append(f"  {heading}: " + ", ".join(f"{name} ({n})" for name, n in counts.items()))
    lines += [f"  note: {note}" for note in report.notes]
    lines += [
        f"  WRONG {problem.path}: {problem.reason}" for problem in report.problems[:_SHOWN_PROBLEMS]
    ]
    if (more := len(report.problems) - _SHOWN_PROBLEMS) > 0:
        lines.append(f"  ... and {more} more; --json lists all")
    lines.append("no problems" if report.ok else f"{len(report.problems)} problems")
    return "\n".join(lines)
