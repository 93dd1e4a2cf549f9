"""How a network is going to be trained, as far as its cost depends on it, and other ways to."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from ranp.errors import UsageError
from ranp.resources.training_memory import StepSettings

_CROP = 0.75
_CROP_MULTIPLE = 16


@dataclass(frozen=True)
class TrainingStep(StepSettings):
    """How a network is going to be trained.

    Attributes:
        batch: Samples per step.
        sample: Shape of one sample: channels, then space.
        optimizer, precision, recompute, device: As in `StepSettings`.
    """

    batch: int
    sample: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1:
            raise UsageError(f"batch must be at least 1, got {self.batch}")
        if len(self.sample) < 1 or min(self.sample) < 1:
            raise UsageError(
                "the shape of a sample must be channels, then space, such as 4,128,128,128, "
                f"got {self.sample}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a batch."""
        return (self.batch, *self.sample)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        values = asdict(self)
        return {"batch": values.pop("batch"), "input": list(values.pop("sample")), **values}

    def __str__(self) -> str:
        parts = [f"batch {self.batch}", "x".join(map(str, self.sample)), self.optimizer]
        parts += [] if self.precision == "32" else [f"{self.precision} mixed precision"]
        parts += ["activation checkpointing"] if self.recompute else []
        return ", ".join([*parts, self.device])


def changes(step: TrainingStep, other: TrainingStep) -> tuple[str, ...]:
    """Return what one would change to train in another way, as text."""
    found = []
    if other.batch != step.batch:
        found.append(f"batch {other.batch}")
    if other.recompute != step.recompute:
        found.append("checkpointing")
    if other.precision != step.precision:
        found.append(other.precision)
    if other.sample != step.sample:
        found.append("crop " + "x".join(map(str, other.sample[1:])))
    return tuple(found)


def variants(step: TrainingStep, *, only_crops: bool = False) -> list[TrainingStep]:
    """Return other ways to train, those first that interfere least.

    Smaller batches, activation checkpointing, mixed precision, a smaller crop, and all of their
    combinations; or crops alone, where nothing but memory would change.
    """
    samples = dict.fromkeys((step.sample, _cropped(step.sample)))
    if only_crops:
        return [replace(step, sample=sample) for sample in samples if sample != step.sample]
    found = [
        replace(step, batch=batch, recompute=recompute, precision=precision, sample=sample)
        for batch, recompute, precision, sample in product(
            dict.fromkeys(n for n in (step.batch, step.batch // 2, step.batch // 4) if n),
            dict.fromkeys((step.recompute, True)),
            dict.fromkeys((step.precision, "bf16" if step.precision == "32" else step.precision)),
            samples,
        )
    ]
    found.remove(step)
    return sorted(found, key=partial(_intrusion, step))


def _intrusion(step: TrainingStep, other: TrainingStep) -> tuple[int, bool, int, bool]:
    """Return how much a way to train interferes: checkpointing least, a crop most."""
    return (
        len(changes(step, other)),
        other.sample != step.sample,
        -other.batch,
        other.precision != step.precision,
    )


def is_part_of(step: TrainingStep, less: TrainingStep, more: TrainingStep) -> bool:
    """Return whether one way to train differs from another, and goes no further in any respect."""
    return less != more and all(
        (
            less.batch >= more.batch,
            less.recompute <= more.recompute,
            less.precision in (step.precision, more.precision),
            math.prod(less.sample) >= math.prod(more.sample),
        )
    )


def _cropped(sample: tuple[int, ...]) -> tuple[int, ...]:
    """Return three quarters of each edge, divisible by the same powers of two, up to 16."""
    channels, *space = sample

    def cut(edge: int) -> int:
        multiple = min(edge & -edge, _CROP_MULTIPLE)
        return max(int(edge * _CROP) // multiple * multiple, multiple)

    return (channels, *(cut(edge) for edge in space))
