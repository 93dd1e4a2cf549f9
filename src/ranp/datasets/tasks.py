"""Tasks: a loss for training, and measures of single cases that add up to metrics.

Metrics are computed from per-case measures, so they do not depend on how the cases were divided
into batches and over processes. Importing this module does not import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Batch = Mapping[str, Any]
Measures = Mapping[str, float | str]
Network = Callable[["Tensor"], "Tensor"]


class Task(ABC):
    """Base class: a task implements `loss` and `measure` and names its `goal`.

    Attributes:
        goal: Metric by which the best epoch is chosen; higher is better.
    """

    goal: str

    @abstractmethod
    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss of a batch, a scalar: a mean over its samples."""

    def scoring_loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss that neurons are scored with: that of training by default."""
        return self.loss(output, batch)

    def scoring_forward(self, network: Network, batch: Batch) -> Tensor:
        """Return the loss that neurons are scored with, of a network on a batch."""
        return self.scoring_loss(network(batch["x"]), batch)

    @abstractmethod
    def measure(self, output: Tensor, batch: Batch) -> list[Measures]:
        """Return the measures of each case of a validation batch."""

    def predict(self, network: Network, x: Tensor) -> Tensor:
        """Return the network's output in validation."""
        return network(x)

    def summarise(self, measures: Sequence[Measures]) -> dict[str, float]:
        """Return the metrics of the whole validation set.

        By default that is the mean of every numeric measure over the cases that have it.
        """
        columns: dict[str, list[float]] = {}
        for case in measures:
            for name, value in case.items():
                if not isinstance(value, str):
                    columns.setdefault(name, []).append(value)
        return {name: sum(values) / len(values) for name, values in columns.items()}


@dataclass(frozen=True)
class Segmentation(Task):
    """Segmentation of volumes: cross-entropy + weight (1 - Dice); Dice of regions and their mean.

    Attributes:
        regions: Labels of every region to measure, by its name.
        dice_weight: Weight of the Dice term.
        window: Edge of the training crops; larger volumes are predicted by a sliding window. None
            predicts any volume at once.
        with_iou: Whether to measure the IoU of the regions, too.
        goal: The mean Dice of the regions.
    """

    regions: Mapping[str, tuple[int, ...]]
    dice_weight: float = 1.0
    window: int | None = None
    with_iou: bool = False
    goal: str = "dice"

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return cross-entropy + weight (1 - Dice)."""
        from ranp.datasets.losses import cross_entropy_and_dice

        return cross_entropy_and_dice(output, batch["y"], self.dice_weight)

    def predict(self, network: Network, x: Tensor) -> Tensor:
        """Predict volumes at once where they are no larger than a training crop."""
        if self.window is None or max(x.shape[2:]) <= self.window:
            return network(x)
        from ranp.datasets.crops import predict_whole

        return predict_whole(network, x, self.window)

    def measure(self, output: Tensor, batch: Batch) -> list[Measures]:
        """Return the Dice (and IoU) of the regions, and the mean of the Dice."""
        pairs = zip(output.argmax(1), batch["y"], strict=True)
        return [self._measure_regions(predicted, truth) for predicted, truth in pairs]

    def _measure_regions(self, predicted: Tensor, truth: Tensor) -> Measures:
        import torch

        from ranp.datasets.losses import overlap

        values: dict[str, float] = {}
        dices = []
        for name, labels in self.regions.items():
            members = torch.tensor(labels, device=truth.device)
            dice, iou = overlap(torch.isin(predicted, members), torch.isin(truth, members))
            dices.append(dice)
            values |= {f"dice {name}": dice, **({f"iou {name}": iou} if self.with_iou else {})}
        return {"dice": sum(dices) / len(dices), **values}


@dataclass(frozen=True)
class Classification(Task):
    """One label per sample: cross-entropy, top-1 and top-5 accuracy."""

    goal: str = "top1"

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy."""
        from torch.nn import functional as F

        result: Tensor = F.cross_entropy(output, batch["y"])
        return result

    def measure(self, output: Tensor, batch: Batch) -> list[Measures]:
        """Return whether the label is the first, and whether it is among the first five."""
        best = output.topk(min(5, output.shape[1])).indices.cpu()
        hits = best == batch["y"].cpu()[:, None]
        return [{"top1": float(hit[0]), "top5": float(hit.any())} for hit in hits]


@dataclass(frozen=True)
class FunctionTask(Task):
    """Task made of two functions of (output, batch).

    Attributes:
        loss_function: Returns the scalar loss of a batch.
        measure_function: Returns a mapping of measures for every case of a batch.
        goal: Measure whose mean chooses the best epoch.
    """

    loss_function: Callable[[Tensor, Batch], Tensor]
    measure_function: Callable[[Tensor, Batch], list[Measures]]
    goal: str

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Call the first function."""
        return self.loss_function(output, batch)

    def measure(self, output: Tensor, batch: Batch) -> list[Measures]:
        """Call the second function."""
        return self.measure_function(output, batch)


def top_classes(output: Tensor, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the five likeliest classes of logits [C], by name, with their probabilities."""
    probability = output.softmax(0)
    best = probability.topk(min(5, len(probability)))
    return [
        {"class": names.get(str(int(label)), str(int(label))), "probability": float(value)}
        for value, label in zip(best.values, best.indices, strict=True)
    ]
