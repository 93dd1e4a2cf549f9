"""Listeners (callbacks) of a training run: its own log, TensorBoard, a progress bar, a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ranp.files import write_text
from ranp.schemas import run_id, seal_epochs


@dataclass(frozen=True)
class Step:
    """One step of the optimizer.

    Attributes:
        epoch: Number of the epoch, from 1.
        batch: Batches of the epoch that are done.
        batches: Batches of the epoch.
        loss: The loss, over all processes.
        samples: Samples it took, over all processes.
        seconds: Since the run began, interruptions not counted.
        ids: The cases this process saw.
    """

    epoch: int
    batch: int
    batches: int
    loss: float
    samples: int
    seconds: float
    ids: tuple[str, ...]


class Listener:
    """Listens to a training run. The methods do nothing here: override those you need."""

    def on_start(self, epoch: int, batch: int, history: Sequence[Mapping[str, Any]]) -> None:
        """Called when training starts, or resumes from a checkpoint, at a position."""

    def on_step(self, step: Step) -> None:
        """Called after each step of the optimizer."""

    def on_epoch_end(self, line: Mapping[str, Any]) -> None:
        """Called after each epoch with its number, loss, rate, seconds and any metrics."""


class RunLog(Listener):
    """Writes `metrics.jsonl` and `log.txt` of a run, and TensorBoard's events if it is installed.

    After a stop `metrics.jsonl` is rewritten from the checkpoint's history, so it never has an
    epoch twice.
    """

    def __init__(self, directory: Path, epochs: int) -> None:
        self._metrics = directory / "metrics.jsonl"
        self._log = directory / "log.txt"
        self._epochs = epochs
        self._run, self._last = run_id(directory), ""
        self._board = _tensorboard(directory)

    def note(self, message: str) -> None:
        """Append a line to `log.txt`, with the time."""
        with self._log.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {message}\n")

    def on_start(self, epoch: int, batch: int, history: Sequence[Mapping[str, Any]]) -> None:
        """Start the files, or bring them to where the checkpoint is."""
        lines = seal_epochs(history, self._run)
        self._last = lines[-1] if lines else ""
        write_text(self._metrics, "".join(line + "\n" for line in lines))
        place = f"epoch {epoch}, batch {batch + 1}"
        self.note(f"continues at {place}" if batch or history else f"begins at {place}")

    def on_epoch_end(self, line: Mapping[str, Any]) -> None:
        """Append one line to each file."""
        with self._metrics.open("a", encoding="utf-8") as file:
            [self._last] = seal_epochs([line], self._run, self._last)
            file.write(self._last + "\n")
        self.note(epoch_line(line, self._epochs))
        if self._board is not None:
            for name, value in (("loss", line["loss"]), *line.get("metrics", {}).items()):
                self._board.add_scalar(name.replace(" ", "/"), value, line["epoch"])
            self._board.flush()


def epoch_line(line: Mapping[str, Any], epochs: int) -> str:
    """Return one line about an epoch."""
    metrics = [(k, v) for k, v in line.get("metrics", {}).items() if " " not in k]
    return "  ".join(
        [
            f"epoch {line['epoch']}/{epochs}",
            f"loss {line['loss']:.4f}",
            *(f"{name} {value:.4f}" for name, value in metrics),
            f"{line['samples_per_second']:.1f} samples/s",
        ]
    )


def _tensorboard(directory: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory / "tensorboard"))
