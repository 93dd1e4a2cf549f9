"""Labelled points to voxel grids, as in the paper's ShapeNet experiments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranp.errors import IntegrityError, UsageError

EMPTY = 255
"""The label of a voxel without points; losses and metrics ignore it."""

MIN_SIZE, MAX_SIZE = 8, 256


@dataclass(frozen=True)
class Voxels:
    """The occupied voxels of a cubic grid: flat (row-major) positions, ascending, and labels."""

    size: int
    positions: NDArray[np.int64]
    labels: NDArray[np.uint8]

    def occupancy(self) -> NDArray[np.float32]:
        """The network's input [1, S, S, S]: 1 where there is a point."""
        grid = np.zeros(self.size**3, np.float32)
        grid[self.positions] = 1.0
        return grid.reshape(1, self.size, self.size, self.size)

    def label_grid(self) -> NDArray[np.int64]:
        """The target [S, S, S]: a voxel's label, `EMPTY` where there is no point."""
        grid = np.full(self.size**3, EMPTY, np.int64)
        grid[self.positions] = self.labels
        return grid.reshape(self.size, self.size, self.size)


def check_size(size: int) -> None:
    """Refuses a grid size outside of what the bit packing of `voxelize` and memory allow."""
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise UsageError(f"voxel grid size {size} is not within {MIN_SIZE} to {MAX_SIZE}")


def voxel_positions(points: NDArray[np.floating], size: int) -> NDArray[np.int64]:
    r"""The flat voxel position of every point.

    Points are divided by the largest norm, without centring, so that the shape fills the unit
    ball; then :math:`v = \lfloor p \cdot d / 2 + s / 2 \rfloor` with d = s - 1, the largest
    integer for which a point on the ball's surface stays within 0 to s - 1.

    Args:
        points: Coordinates [N, 3].
        size: The grid's edge s.
    """
    check_size(size)
    radius = np.sqrt((points * points).sum(axis=1).max(initial=0.0))
    if not np.isfinite(radius) or radius == 0.0:
        raise IntegrityError("the points are not finite, or all lie in the origin")
    cells = np.floor(points * ((size - 1) / (2.0 * radius)) + size / 2.0).astype(np.int64)
    return np.asarray((cells[:, 0] * size + cells[:, 1]) * size + cells[:, 2])


def voxelize(points: NDArray[np.floating], labels: NDArray[np.integer], size: int) -> Voxels:
    """Voxelizes labelled points; a voxel takes its points' most frequent label.

    Ties go to the smallest label. No loop over points: (voxel, label) pairs are packed into one
    integer, sorted and counted, and the counts packed and sorted once more.

    Args:
        points: Coordinates [N, 3].
        labels: One label from 0 to 254 per point [N].
        size: The grid's edge.
    """
    if len(points) != len(labels):
        raise IntegrityError(f"{len(points)} points but {len(labels)} labels")
    pairs = np.sort((voxel_positions(points, size) << 8) | labels.astype(np.int64))
    first = np.flatnonzero(np.concatenate(([True], pairs[1:] != pairs[:-1])))
    counts = np.diff(first, append=len(pairs))
    position, label = pairs[first] >> 8, pairs[first] & 0xFF

    # Ascending in voxel, then descending in count, then ascending in label: the winner is first.
    ranked = np.sort((position << 38) | ((len(pairs) - counts) << 8) | label)
    position = ranked >> 38
    winners = np.concatenate(([True], position[1:] != position[:-1]))
    return Voxels(size, position[winners], (ranked[winners] & 0xFF).astype(np.uint8))
