"""The 16 categories and 50 parts of ShapeNet in the official numbering, and their mIoU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranp.datasets.voxels import EMPTY
from ranp.errors import UsageError, suggest


@dataclass(frozen=True)
class Category:
    """A category with its parts, which have the global labels `first` to `first + count - 1`."""

    name: str
    synset: str
    first: int
    parts: tuple[str, ...]

    @property
    def labels(self) -> range:
        """Global labels of the category's parts."""
        return range(self.first, self.first + len(self.parts))


_TABLE = (
    ("Airplane", "02691156", ("body", "wing", "tail", "engine")),
    ("Bag", "02773838", ("handle", "body")),
    ("Cap", "02954340", ("panel", "peak")),
    ("Car", "02958343", ("roof", "hood", "wheel", "body")),
    ("Chair", "03001627", ("back", "seat", "leg", "arm")),
    ("Earphone", "03261776", ("earcup", "headband", "wire")),
    ("Guitar", "03467517", ("head", "neck", "body")),
    ("Knife", "03624134", ("blade", "handle")),
    ("Lamp", "03636649", ("base", "shade", "bulb", "tube")),
    ("Laptop", "03642806", ("keyboard", "screen")),
    ("Motorbike", "03790512", ("tank", "seat", "wheel", "handlebar", "light", "frame")),
    ("Mug", "03797390", ("handle", "cup")),
    ("Pistol", "03948459", ("barrel", "grip", "trigger")),
    ("Rocket", "04099429", ("body", "fin", "nose")),
    ("Skateboard", "04225987", ("wheel", "deck", "truck")),
    ("Table", "04379243", ("top", "leg", "drawer")),
)

_FIRST = np.cumsum([0, *(len(parts) for _, _, parts in _TABLE)]).tolist()

CATEGORIES = tuple(
    Category(name, synset, first, parts)
    for (name, synset, parts), first in zip(_TABLE, _FIRST, strict=False)
)
PARTS = _FIRST[-1]
"""Number of part labels over all categories: 50."""

BY_SYNSET = {category.synset: category for category in CATEGORIES}


def category_named(name: str) -> Category:
    """Return the category of a name ("Chair")."""
    for category in CATEGORIES:
        if category.name == name:
            return category
    known = [category.name for category in CATEGORIES]
    raise UsageError(f"unknown shape category '{name}'.{suggest(name, known)}")


@dataclass(frozen=True)
class PartMiou:
    """Mean IoU of every category that occurs, and over categories weighted by their shapes."""

    by_category: dict[str, float]
    overall: float


def shape_iou(
    scores: NDArray[np.floating], labels: NDArray[np.integer], category: Category
) -> float:
    """Return one shape's IoU: the mean over its category's parts.

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
    """Average shapes' IoUs over each category, then over categories weighted by their shapes.

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
