"""Part mIoU, as the paper reports it for ShapeNet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranp.datasets.parts import Category
from ranp.datasets.voxels import EMPTY


@dataclass(frozen=True)
class PartMiou:
    """The mean IoU of every category that occurs, and over categories weighted by their shapes."""

    by_category: dict[str, float]
    overall: float


def shape_iou(
    scores: NDArray[np.floating], labels: NDArray[np.integer], category: Category
) -> float:
    """One shape's IoU: the mean over its category's parts.

    A voxel is given the part with the highest score among the category's own parts; a part that
    neither occurs nor is predicted counts 1; empty voxels do not count.

    Args:
        scores: Logits or probabilities of all 50 parts [50, ...].
        labels: Part labels [...], `EMPTY` where there is no point.
        category: The shape's category, which is given, not predicted.
    """
    occupied = labels != EMPTY
    truth = labels[occupied]
    own = scores[category.first : category.first + len(category.parts)][:, occupied]
    predicted = own.argmax(axis=0) + category.first
    return float(np.mean([_iou(predicted == part, truth == part) for part in category.labels]))


def _iou(predicted: NDArray[np.bool_], truth: NDArray[np.bool_]) -> float:
    union = np.count_nonzero(predicted | truth)
    return np.count_nonzero(predicted & truth) / union if union else 1.0


def part_miou(ious: Sequence[float], categories: Sequence[str]) -> PartMiou:
    """Averages shapes' IoUs over each category, then over categories weighted by their shapes.

    Args:
        ious: What `shape_iou` gave for every shape.
        categories: The shapes' categories, by name.
    """
    grouped: dict[str, list[float]] = {}
    for iou, category in zip(ious, categories, strict=True):
        grouped.setdefault(category, []).append(iou)
    means = {category: float(np.mean(grouped[category])) for category in sorted(grouped)}
    weights = [len(grouped[category]) for category in means]
    overall = float(np.average(list(means.values()), weights=weights)) if means else float("nan")
    return PartMiou(means, overall)
