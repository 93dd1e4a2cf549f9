"""Schemas of the files of a training run: configuration, cases, checkpoint, epochs, record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic.functional_validators import AfterValidator

from ranp.record_schema import (
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
    check_costs,
)


class Epoch(Content):
    """A line of `metrics.jsonl`."""

    epoch: Size
    loss: float
    lr: Amount = 0.0
    seconds: Amount = 0.0
    samples_per_second: Amount = 0.0
    metrics: dict[str, float] = Field(default_factory=dict)


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
        return self


def check_epochs(history: Sequence[Epoch]) -> None:
    """Raise `ValueError` for lines that are not those of the epochs 1, 2, ... in turn."""
    for expected, line in enumerate(history, start=1):
        if line.epoch != expected:
            raise ValueError(f"'epoch' must count up, got {line.epoch} in line {expected}")


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


def _unique(names: list[str]) -> list[str]:
    if len(set(names)) != len(names):
        raise ValueError("no name may appear twice")
    return names


class DataFile(File):
    """The cases of a training run."""

    id: Hash | None = None
    fingerprint: Hash
    train: Annotated[list[Name], Field(min_length=1), AfterValidator(_unique)]
    validation: Annotated[list[Name], AfterValidator(_unique)]
    modalities: list[str] = Field(default_factory=list)
    regions: dict[str, Annotated[list[Count], Field(min_length=1)]] = Field(default_factory=dict)
    classes: Texts = Field(default_factory=dict)


class Averaged(Content):
    """A metric over the last epochs."""

    mean: float
    std: float
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
        if self.full is not None and self.slim is not None:
            check_costs(self.full, self.slim)
        return self
