"""The 16 categories and 50 parts of ShapeNet in the official numbering: task, mIoU, picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ranp.datasets.pictures import COLOURS, draw_voxels, make_grid
from ranp.datasets.tasks import Batch, Measures, Task
from ranp.datasets.voxels import EMPTY
from ranp.errors import lookup

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Category:
    """A category; its parts have consecutive global labels from `first` on."""

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
BY_NAME = {category.name: category for category in CATEGORIES}


def category_named(name: str) -> Category:
    """Return the category of a name ("Chair")."""
    return lookup(BY_NAME, name, "shape category")


def shape_iou(
    scores: NDArray[np.floating], labels: NDArray[np.integer], category: Category
) -> float:
    """Return one shape's IoU: the mean over the parts of its category, which is given.

    A voxel is given the part with the highest score [50, ...] among the category's own parts; a
    part that neither occurs nor is predicted counts 1; voxels of label `EMPTY` do not count.
    """
    occupied = labels != EMPTY
    truth = labels[occupied]
    own = scores[category.first : category.first + len(category.parts)][:, occupied]
    predicted = own.argmax(axis=0) + category.first
    return float(np.mean([_iou(predicted == part, truth == part) for part in category.labels]))


def _iou(predicted: NDArray[np.bool_], truth: NDArray[np.bool_]) -> float:
    union = np.count_nonzero(predicted | truth)
    return np.count_nonzero(predicted & truth) / union if union else 1.0


def part_miou(ious: Sequence[float], categories: Sequence[str]) -> dict[str, float]:
    """Average shapes' IoUs over each category, then over categories weighted by their shapes.

    Returns:
        The latter as "miou", and every category that occurs as "miou <name>".
    """
    grouped: dict[str, list[float]] = {}
    for iou, category in zip(ious, categories, strict=True):
        grouped.setdefault(category, []).append(iou)
    means = {category: float(np.mean(grouped[category])) for category in sorted(grouped)}
    weights = [len(grouped[category]) for category in means]
    overall = float(np.average(list(means.values()), weights=weights)) if means else float("nan")
    return {"miou": overall, **{f"miou {category}": mean for category, mean in means.items()}}


@dataclass(frozen=True)
class PartSegmentation(Task):
    """Part segmentation of shapes: cross-entropy over occupied voxels, mIoU as in the paper."""

    goal: str = "miou"

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy over a shape's occupied voxels, then over shapes."""
        from ranp.datasets.losses import sample_cross_entropy

        return sample_cross_entropy(output, batch["y"], ignored=EMPTY)

    def measure(self, output: Tensor, batch: Batch) -> list[Measures]:
        """Return a shape's category, which is given, and its IoU among the category's own parts."""
        scores, labels = output.float().cpu().numpy(), batch["y"].cpu().numpy()
        return [
            {"category": name, "iou": shape_iou(scores[i], labels[i], category_named(name))}
            for i, name in enumerate(batch["category"])
        ]

    def summarise(self, measures: Sequence[Measures]) -> dict[str, float]:
        """Return the mIoU per category, and over categories weighted by their shapes."""
        ious = [float(case["iou"]) for case in measures]
        return part_miou(ious, [str(case["category"]) for case in measures])


def draw_parts(samples: Sequence[Mapping[str, Any]]) -> Any:
    """Draw shapes as voxels, coloured by part, with a legend."""
    from matplotlib.lines import Line2D

    figure, axes = make_grid(len(samples))
    for axis, shown in zip(axes, samples, strict=True):
        labels, category = shown["y"].numpy(), category_named(shown["category"])
        draw_voxels(axis, np.where(labels == EMPTY, -1, labels - category.first))
        axis.set_title(category.name, fontsize=10)
        handles = [
            Line2D([], [], marker="s", linestyle="", color=COLOURS[k], label=part)
            for k, part in enumerate(category.parts)
            if (labels == category.first + k).any()
        ]
        axis.legend(
            handles=handles,
            fontsize=7,
            ncols=3,
            loc="upper center",
            bbox_to_anchor=(0.5, 0.02),
            frameon=False,
            handletextpad=0.1,
            columnspacing=0.8,
        )
    return figure
