"""What is learned: a loss for training, and measures of single cases that add up to metrics.

Metrics are computed from per-case measures, so they do not depend on how the cases were divided
into batches and over processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ranp.datasets.brats import REGIONS
from ranp.datasets.part_metrics import part_miou, shape_iou
from ranp.datasets.parts import category_named
from ranp.datasets.voxels import EMPTY
from ranp.errors import UsageError, suggest
from ranp.training.losses import cross_entropy_and_dice, overlap, sample_cross_entropy

Batch = Mapping[str, Any]
Measures = Mapping[str, float | str]
Network = Callable[[Tensor], Tensor]


class Task(ABC):
    """A task of your own implements `loss` and `measure`, and names its `goal`.

    Attributes:
        goal: The metric by which the best epoch is chosen; higher is better.
    """

    goal: str

    @abstractmethod
    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """The loss of a batch, a scalar: a mean over its samples."""

    @abstractmethod
    def measure(self, output: Tensor, batch: Batch) -> list[Measures]:
        """What is measured of each case of a validation batch."""

    def predict(self, network: Network, x: Tensor) -> Tensor:
        """The network's output in validation."""
        return network(x)

    def summarise(self, measures: Sequence[Measures]) -> dict[str, float]:
        """Metrics of the whole validation set: by default the mean of every measure."""
        return mean_of(measures)


def mean_of(measures: Sequence[Measures]) -> dict[str, float]:
    """The mean of every numeric measure over the cases that have it."""
    columns: dict[str, list[float]] = {}
    for case in measures:
        for name, value in case.items():
            if not isinstance(value, str):
                columns.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in columns.items()}


@dataclass(frozen=True)
class Parts(Task):
    """Part segmentation of shapes: cross-entropy over occupied voxels, mIoU as in the paper."""

    goal: str = "miou"

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy over a shape's occupied voxels, then over shapes."""
        return sample_cross_entropy(output, batch["y"], ignored=EMPTY)

    def measure(self, output: Tensor, batch: Batch) -> list[Measures]:
        """A shape's category, which is given, and its IoU among the category's own parts."""
        scores, labels = output.float().cpu().numpy(), batch["y"].cpu().numpy()
        return [
            {"category": name, "iou": shape_iou(scores[i], labels[i], category_named(name))}
            for i, name in enumerate(batch["category"])
        ]

    def summarise(self, measures: Sequence[Measures]) -> dict[str, float]:
        """The mIoU per category, and over categories weighted by their shapes."""
        ious = [float(case["iou"]) for case in measures]
        result = part_miou(ious, [str(case["category"]) for case in measures])
        return {
            "miou": result.overall,
            **{f"miou {name}": value for name, value in result.by_category.items()},
        }


@dataclass(frozen=True)
class Brats(Task):
    """Brain tumours: cross-entropy + alpha (1 - Dice); Dice and IoU of ET, TC and WT.

    Attributes:
        window: Edge of the training crops; larger volumes are predicted by a sliding window.
        alpha: Weight of the Dice term.
        goal: Mean Dice of the three regions.
    """

    window: int
    alpha: float = 0.25
    goal: str = "dice"

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy + alpha (1 - Dice)."""
        return cross_entropy_and_dice(output, batch["y"], self.alpha)

    def predict(self, network: Network, x: Tensor) -> Tensor:
        """Whole volumes at once where they are no larger than a training crop."""
        if max(x.shape[2:]) <= self.window:
            return network(x)
        from ranp.datasets.crops import predict_whole

        return predict_whole(network, x, self.window)

    def measure(self, output: Tensor, batch: Batch) -> list[Measures]:
        """Dice and IoU of the regions, and the Dice's mean."""
        predicted, truth = output.argmax(1), batch["y"]
        return [self._regions(p, t) for p, t in zip(predicted, truth, strict=True)]

    def _regions(self, predicted: Tensor, truth: Tensor) -> Measures:
        values: dict[str, float] = {}
        for name, labels in REGIONS.items():
            members = torch.tensor(labels, device=truth.device)
            dice, iou = overlap(torch.isin(predicted, members), torch.isin(truth, members))
            values |= {f"dice {name}": dice, f"iou {name}": iou}
        dices = [values[f"dice {name}"] for name in REGIONS]
        return {"dice": sum(dices) / len(dices), **values}


@dataclass(frozen=True)
class Classification(Task):
    """One label per sample: cross-entropy, top-1 and top-5 accuracy."""

    goal: str = "top1"

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy."""
        result: Tensor = torch.nn.functional.cross_entropy(output, batch["y"])
        return result

    def measure(self, output: Tensor, batch: Batch) -> list[Measures]:
        """Whether the label is the first, and whether it is among the first five."""
        best = output.topk(min(5, output.shape[1])).indices.cpu()
        hits = best == batch["y"].cpu()[:, None]
        return [{"top1": float(hit[0]), "top5": float(hit.any())} for hit in hits]


@dataclass(frozen=True)
class Hippocampus(Task):
    """Hippocampus: cross-entropy + Dice; Dice of anterior and posterior and their mean."""

    goal: str = "dice"

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy + (1 - Dice)."""
        return cross_entropy_and_dice(output, batch["y"], 1.0)

    def measure(self, output: Tensor, batch: Batch) -> list[Measures]:
        """Dice of both parts in a volume, and their mean."""
        result: list[Measures] = []
        for predicted, truth in zip(output.argmax(1), batch["y"], strict=True):
            anterior, _ = overlap(predicted == 1, truth == 1)
            posterior, _ = overlap(predicted == 2, truth == 2)
            result.append(
                {
                    "dice": (anterior + posterior) / 2,
                    "dice anterior": anterior,
                    "dice posterior": posterior,
                }
            )
        return result


@dataclass(frozen=True)
class FunctionTask(Task):
    """A task from two functions of (output, batch).

    Attributes:
        loss_function: Gives the scalar loss of a batch.
        measure_function: Gives a mapping of measures for every case of a batch.
        goal: The measure whose mean chooses the best epoch.
    """

    loss_function: Callable[[Tensor, Batch], Tensor]
    measure_function: Callable[[Tensor, Batch], list[Measures]]
    goal: str

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Calls the first function."""
        return self.loss_function(output, batch)

    def measure(self, output: Tensor, batch: Batch) -> list[Measures]:
        """Calls the second function."""
        return self.measure_function(output, batch)


def make_task(name: str, *, window: int) -> Task:
    """The task of a name.

    Args:
        name: "parts", "brats", "classification" or "hippocampus".
        window: Edge of the training crops.
    """
    tasks: dict[str, Callable[[], Task]] = {
        "parts": Parts,
        "brats": lambda: Brats(window),
        "classification": Classification,
        "hippocampus": Hippocampus,
    }
    if name not in tasks:
        raise UsageError(f"unknown task '{name}'.{suggest(name, tasks)}")
    return tasks[name]()
