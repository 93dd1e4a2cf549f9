"""Schemas of the files of a training run: configuration, cases, checkpoint, epochs, record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf, isclose
from statistics import fmean, stdev
from typing import Annotated, Any

from pydantic import Field, model_validator

from ranp.schemas.base import (
    Amount,
    Content,
    Costs,
    Count,
    File,
    Hash,
    Name,
    Seed,
    Size,
    Texts,
    Unique,
    check_costs,
)


class Epoch(Content):
    """A line of `metrics.jsonl`."""

    epoch: Size
    loss: float
    lr: Amount = 0.0
    seconds: Amount = 0.0
    samples_per_second: Amount = 0.0
    # Not every epoch is validated; one that is, has metrics.
    metrics: dict[str, float] = Field(default_factory=dict, min_length=1)


class _Progress(Content):
    epoch: Size
    batch: Count
    loss: float
    seconds: Amount
    best: float | None
    best_epoch: Size | None
    history: list[Epoch]

    @model_validator(mode="after")
    def _has_a_line_of_each_epoch(self) -> _Progress:
        check_epochs(self.history)
        if len(self.history) != self.epoch - 1:
            raise ValueError(f"'history' must have the {self.epoch - 1} epochs before 'epoch'")
        if self.best_epoch is not None and self.best_epoch >= self.epoch:
            raise ValueError(f"'best_epoch' must be below 'epoch', got {self.best_epoch}")
        check_best(self.best_epoch, self.best, self.history)
        if self.history and self.seconds < self.history[-1].seconds:
            raise ValueError(f"'seconds' must be those of the history, got {self.seconds}")
        if self.batch == 0 and self.loss != 0:
            raise ValueError(f"'loss' must be 0 before the first batch, got {self.loss}")
        return self


def check_epochs(history: Sequence[Epoch]) -> None:
    """Raise `ValueError` for lines that are not those of the epochs 1, 2, ... in turn."""
    for expected, line in enumerate(history, start=1):
        if line.epoch != expected:
            raise ValueError(f"'epoch' must count up, got {line.epoch} in line {expected}")
    if any(before.seconds > after.seconds for before, after in pairwise(history)):
        raise ValueError("'seconds' must count up")
    names = {tuple(sorted(line.metrics)) for line in history if line.metrics}
    if len(names) > 1:
        raise ValueError("'metrics' must be the same in every line that has some")


def check_best(
    epoch: int | None, value: float | None, history: Sequence[Epoch], goal: str | None = None
) -> None:
    """Raise `ValueError` for a best epoch whose line has no such value, of the goal if known."""
    metrics: Mapping[str, float | None] = {"": None}
    if epoch is not None:
        metrics = history[epoch - 1].metrics
    if value not in (metrics.values() if epoch is None or goal is None else [metrics.get(goal)]):
        raise ValueError(f"'best' must be a metric of epoch {epoch}, got {value}")


class CheckpointFile(File):
    """The metadata of a checkpoint, beside its tensors."""

    progress: _Progress
    scaler: dict[str, Any]


class _Config(Content):
    recipe: str
    epochs: Size


class RunFile(File):
    """The configuration of a training run."""

    config: _Config
    data: str | None
    plan: Hash | None
    transfer: bool


Labels = Annotated[list[Count], Field(min_length=1), Unique]


class DataFile(File):
    """The cases of a training run."""

    id: Hash | None = None
    fingerprint: Hash
    train: Annotated[list[Name], Field(min_length=1), Unique]
    validation: Annotated[list[Name], Unique]
    modalities: Annotated[list[Name], Unique] = Field(default_factory=list)
    regions: dict[str, Labels] = Field(default_factory=dict)
    classes: Texts = Field(default_factory=dict)


class Averaged(Content):
    """A metric over the last epochs."""

    mean: float
    std: Amount
    last: float


class _Optimization(Content):
    kept: str
    speedup: Amount


class TrainingFile(File):
    """The record of a training run."""

    id: Hash | None = None
    plan: Hash | None = None
    run: str | None = None
    recipe: str | None
    metrics: dict[str, Averaged]
    best: dict[str, float | None] = Field(default_factory=dict)
    goal: str
    epochs: Size
    seconds: Amount
    full: Costs | None
    slim: Costs | None
    seed: Seed
    method: Name | None = None
    processes: Size = 1
    optimization: _Optimization | None = None
    data: Hash = "0" * 64
    device: str | None = None
    versions: Texts = Field(default_factory=dict)

    @model_validator(mode="after")
    def _reached_its_goal(self) -> TrainingFile:
        if self.goal not in self.metrics:
            raise ValueError(f"'goal' must be one of the metrics, got '{self.goal}'")
        best = self.best.get("epoch")
        if best is not None and best not in range(1, self.epochs + 1):
            raise ValueError(f"'best.epoch' must be from 1 to {self.epochs}, got {best}")
        if self.full is not None and self.slim is not None:
            check_costs(self.full, self.slim)
        return self


AVERAGED_EPOCHS = 5
"""Metrics are averaged over the last five epochs, as in the paper."""


def averaged(history: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return mean and standard deviation (n - 1) of every metric over the last five epochs."""
    lines = [line["metrics"] for line in history[-AVERAGED_EPOCHS:]]
    columns = {name: [line[name] for line in lines] for name in lines[-1]}
    return {
        name: {
            "mean": fmean(values),
            "std": stdev(values) if len(values) > 1 else 0.0,
            "last": values[-1],
        }
        for name, values in columns.items()
    }


def check_record(record: TrainingFile, history: Sequence[Epoch]) -> None:
    """Raise `ValueError` for a record that does not follow from the lines of its epochs."""
    if len(history) != record.epochs:
        raise ValueError(f"record.json has {record.epochs} epochs, metrics.jsonl {len(history)}")
    if not all(line.metrics for line in history[-AVERAGED_EPOCHS:]):
        raise ValueError("'metrics' must be in the last lines of metrics.jsonl")
    expected = averaged([line.model_dump() for line in history])
    stored = {name: each.model_dump() for name, each in record.metrics.items()}
    for name in {**expected, **stored}:
        for key, value in expected.get(name, {}).items():
            if not isclose(stored.get(name, {}).get(key, inf), value, rel_tol=1e-9, abs_tol=1e-12):
                raise ValueError(f"'metrics.{name}.{key}' must be {value} by metrics.jsonl")
        if name not in expected:
            raise ValueError(f"'metrics.{name}' is not in metrics.jsonl")
    if record.best:
        best = record.best.get("epoch")
        check_best(
            None if best is None else int(best), record.best.get(record.goal), history, record.goal
        )
    if record.seconds < history[-1].seconds:
        raise ValueError(f"'seconds' must be at least {history[-1].seconds} by metrics.jsonl")
