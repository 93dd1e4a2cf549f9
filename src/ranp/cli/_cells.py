"""What commands that compute cells share: options, the store, progress, and going on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ranp.cli._options import Output

if TYPE_CHECKING:
    from ranp.experiments.jobs import Jobs
    from ranp.trials.store import OnCell, Store


@dataclass(frozen=True)
class CellOptions:
    """How cells are computed."""

    jobs: Annotated[
        str,
        typer.Option(
            help="Number of processes on this machine, or slurm for a job array with one job per "
            "cell. Each process uses OMP_NUM_THREADS threads."
        ),
    ] = "1"
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Recompute results of another version of the code.")
    ] = False

    def parse_jobs(self) -> Jobs:
        """Return where the cells are computed."""
        from ranp.experiments.jobs import parse_jobs

        return parse_jobs(self.jobs)

    def open_store(self, directory: Path, *computing: Any) -> Store:
        """Return the store of a command, whose cells the given functions and classes compute."""
        from ranp.trials.source_code import code_fingerprint
        from ranp.trials.store import Store

        return Store(directory, code=code_fingerprint(*computing), recompute=self.recompute)


@contextmanager
def cell_progress(output: Output, unit: str, describe: Any) -> Iterator[OnCell]:
    """Show progress over cells on stderr, a bar in a terminal or lines; name how to go on.

    `describe(cell, done, total)` returns what the bar shows, and a line or None. Yields a function
    to call before each cell.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

    from ranp.display import progress_bar

    counted = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    bar = progress_bar(unit, *counted, "{task.description}", quiet=output.quiet)
    with resume_hint(), bar:
        task = bar.add_task("", total=None)

        def on_cell(cell: Mapping[str, Any], done: int, total: int) -> None:
            about, line = describe(cell, done, total)
            bar.update(task, total=total, completed=done, description=about)
            if bar.disable and line is not None:
                output.say(line)

        yield on_cell


@contextmanager
def resume_hint() -> Iterator[None]:
    """Add to the message of an interruption that the same command resumes the work."""
    from ranp.signals import Interrupted, stoppable

    try:
        with stoppable("stopped"):
            yield
    except Interrupted as error:
        stopped = str(error).partition(";")[0]
        raise Interrupted(
            error.exit_code - 128, f"{stopped}; to continue, run the same command"
        ) from error
