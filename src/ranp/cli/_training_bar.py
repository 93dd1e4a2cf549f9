"""Live progress of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rich.progress import BarColumn, TaskID

from ranp.display import progress_bar
from ranp.training.listeners import Listener, Step, epoch_line


class TrainingBar(Listener):
    """Epoch, loss, metric, samples per second and remaining time, and a line per epoch above.

    Where there is no terminal, only the lines are printed.
    """

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._metric = ""
        self._began: float | None = None
        self._samples = 0
        self._bar = progress_bar("{task.description}", BarColumn(20), quiet=False)
        self._task: TaskID = self._bar.add_task("preparing", total=None)

    def __enter__(self) -> TrainingBar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def on_start(self, epoch: int, batch: int, history: Sequence[Mapping[str, Any]]) -> None:
        """Show that training has begun."""
        self._bar.update(self._task, description=f"epoch {epoch}/{self._epochs}")

    def on_step(self, step: Step) -> None:
        """Update the bar."""
        if self._began is None:  # the rate counts from the first step's end on
            self._began = step.seconds
        else:
            self._samples += step.samples
        done = (step.epoch - 1) * step.batches + step.batch
        total = self._epochs * step.batches
        elapsed = step.seconds - self._began
        rate = self._samples / elapsed if elapsed else 0.0
        left = step.seconds / done * (total - done)
        self._bar.update(
            self._task,
            total=total,
            completed=done,
            description=(
                f"epoch {step.epoch}/{self._epochs}  loss {step.loss:.4f}{self._metric}  "
                f"{rate:.1f} samples/s  {timedelta(seconds=round(left))} left"
            ),
        )

    def on_epoch_end(self, line: Mapping[str, Any]) -> None:
        """Print the epoch's line above the bar."""
        metrics = line.get("metrics", {})
        if metrics:
            name, value = next(iter(metrics.items()))
            self._metric = f"  {name} {value:.4f}"
        text = epoch_line(line, self._epochs)
        self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
