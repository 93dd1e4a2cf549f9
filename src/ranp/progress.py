"""Scoring as a progress bar, in terminals and notebooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

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
    """Shows scoring as a progress bar; a context that removes the bar."""

    def __init__(self, shown: bool = True) -> None:
        self._shown = shown
        self._stack = ExitStack()
        self._advance: Callable[[], None] = lambda: None

    def __enter__(self) -> ScoringBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def on_start(self, done: int, total: int | None) -> None:
        """Show the bar, with rate and remaining time."""
        counted = (BarColumn(), MofNCompleteColumn(), _RateColumn(), TimeElapsedColumn())
        columns = ("{task.description}", *counted, "left", TimeRemainingColumn())
        bar = self._stack.enter_context(progress_bar(*columns, quiet=not self._shown))
        task = bar.add_task("scoring", total=total, completed=done)
        self._advance = lambda: bar.advance(task)

    def on_batch(self, scores: Scores) -> bool:
        """Advance the bar."""
        self._advance()
        return False

    def on_scored(self, scores: Scores, verdict: str | None) -> None:
        """Remove the bar."""
        self._stack.close()


class _RateColumn(ProgressColumn):
    """Batches per second, or seconds per batch where that is the larger number."""

    def render(self, task: Task) -> Text:
        return Text(format_rate(task.finished_speed or task.speed))


def format_rate(per_second: float | None) -> str:
    """Format a rate; nothing as long as it is not known."""
    if not per_second:
        return ""
    return f"{per_second:.1f}/s" if per_second >= 1 else f"{1 / per_second:.1f} s each"
