"""A progress bar in notebooks, by IPython alone: rich's own needs ipywidgets, and else warns."""

from __future__ import annotations

import time
from typing import Any

from rich.progress import Progress, ProgressColumn, TaskID

from ranp.display import html_text, plain

_SECONDS = 0.1
"""How often the bar is drawn at most."""


class NotebookProgress(Progress):
    """Draws its bar into the output of a cell, and takes it away at its end."""

    def __init__(self, *columns: str | ProgressColumn) -> None:
        """Begin without a bar; the first task shows it."""
        super().__init__(*columns, disable=True)  # of rich's own display
        self._cell: Any = None
        self._drawn = 0.0

    def add_task(self, *args: Any, **kwargs: Any) -> TaskID:
        """Add a task (see `Progress.add_task`)."""
        task = super().add_task(*args, **kwargs)
        self._draw()
        return task

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Advance a task."""
        super().advance(task_id, advance)
        if time.monotonic() - self._drawn >= _SECONDS:
            self._draw()

    def stop(self) -> None:
        """Take the bar away."""
        super().stop()
        if self._cell is not None:
            self._cell.update({"text/plain": "", "text/html": ""}, raw=True)
            self._cell = None

    def _draw(self) -> None:
        from IPython.display import display

        text = plain(self.get_renderable(), width=100)
        shown = {"text/plain": text, "text/html": html_text(text)}
        if self._cell is None:
            self._cell = display(shown, raw=True, display_id=True)
        else:
            self._cell.update(shown, raw=True)
        self._drawn = time.monotonic()
