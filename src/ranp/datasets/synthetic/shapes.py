"""Synthetic part-labelled shapes: surface points of the 16 ShapeNet part categories.

A shape is drawn from (seed, index) alone: proportions, optional parts, stretch, heading and
number of points vary; categories take turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranp.datasets.parts import CATEGORIES, Category
from ranp.datasets.synthetic.objects import BUILDERS
from ranp.datasets.synthetic.surfaces import joined, rotation_matrix

_MIN_POINTS, _MAX_POINTS = 2000, 3000
_MIN_POINTS_PER_PART = 40
_DECIMALS = 5  # as the .pts files hold, so that a shape read back equals the one drawn
_STREAM = 1  # keeps the random numbers apart from those of the other generators


@dataclass(frozen=True)
class Shape:
    """A shape: points [N, 3] on its surface and their global part labels [N]."""

    category: Category
    points: NDArray[np.float64]
    labels: NDArray[np.int64]


def draw_shape(seed: int, index: int) -> Shape:
    """Draw shape `index` of the endless synthetic data set `seed`."""
    category = CATEGORIES[index % len(CATEGORIES)]
    rng = np.random.default_rng([_STREAM, seed, index])
    surfaces = BUILDERS[category.name](lambda low, high: float(rng.uniform(low, high)))
    parts = {
        label: joined(surfaces[name])
        for label, name in zip(category.labels, category.parts, strict=True)
        if surfaces[name]
    }
    # By area, as a scan would give, but small parts (a trigger) keep enough points to be seen.
    total = int(rng.integers(_MIN_POINTS, _MAX_POINTS + 1)) - _MIN_POINTS_PER_PART * len(parts)
    areas = np.array([surface.area for surface in parts.values()])
    counts = rng.multinomial(total, areas / areas.sum()) + _MIN_POINTS_PER_PART

    points = np.concatenate(
        [surface.draw(rng, count) for surface, count in zip(parts.values(), counts, strict=True)]
    )
    labels = np.repeat(np.fromiter(parts, np.int64), counts)
    order = rng.permutation(len(points))
    return Shape(category, _placed(points, rng)[order], labels[order])


def _placed(points: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Stretched and turned a little, centred, and scaled to half a unit, as in ShapeNet."""
    points = points * rng.uniform(0.85, 1.15, 3) @ rotation_matrix("y", rng.uniform(-25, 25)).T
    points = points - (points.min(axis=0) + points.max(axis=0)) / 2
    points *= 0.5 / np.linalg.norm(points, axis=1).max()
    return points.round(_DECIMALS)
