"""Scoring as a progress bar, in terminals and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ranp.display import progress_bar
from ranp.pipeline import Events
from ranp.pruning import Scores


class ScoringBar(Events):
    """Shows scoring as a progress bar; a context that removes the bar.

    Args:
        shown: Whether there is a bar at all.
    """

    def __init__(self, shown: bool = True) -> None:
        self._shown = shown
        self._stack = ExitStack()
        self._step: Callable[[], None] = lambda: None

    def __enter__(self) -> ScoringBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def on_start(self, done: int, total: int | None) -> None:
        """Show the bar."""
        self._step = self._stack.enter_context(progress(not self._shown, "scoring", total, done))

    def on_batch(self, scores: Scores) -> bool:
        """Advance the bar."""
        self._step()
        return False

    def on_scored(self, scores: Scores, verdict: str | None) -> None:
        """Remove the bar."""
        self._stack.close()


class _RateColumn(ProgressColumn):
    """Steps per second, or seconds per step where that is the larger number."""

    def render(self, task: Task) -> Text:
        return Text(rate(task.finished_speed or task.speed))


@contextmanager
def progress(
    quiet: bool, title: str, total: int | None, done: int = 0
) -> Iterator[Callable[[], None]]:
    """Show a progress bar on stderr with rate and remaining time; nothing where nobody looks.

    Args:
        quiet: No bar.
        title: What goes on.
        total: How many steps there are, if known.
        done: How many of them were made before.

    Yields:
        A function to call after each step.
    """
    counted = (BarColumn(), MofNCompleteColumn(), _RateColumn(), TimeElapsedColumn())
    columns = ("{task.description}", *counted, "left", TimeRemainingColumn())
    with progress_bar(*columns, quiet=quiet) as bar:
        task = bar.add_task(title, total=total, completed=done)
        yield lambda: bar.advance(task)


def rate(per_second: float | None) -> str:
    """Format a rate; nothing as long as it is not known."""
    if not per_second:
        return ""
    return f"{per_second:.1f}/s" if per_second >= 1 else f"{1 / per_second:.1f} s each"
