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
    positions: NDArray[np.integer]
    labels: NDArray[np.uint8]

    def occupancy(self) -> NDArray[np.float32]:
        """Return the network's input [1, S, S, S]: 1 where there is a point."""
        grid = np.zeros(self.size**3, np.float32)
        grid[self.positions] = 1.0
        return grid.reshape(1, self.size, self.size, self.size)

    def label_grid(self) -> NDArray[np.int64]:
        """Return the target [S, S, S]: a voxel's label, `EMPTY` where there is no point."""
        grid = np.full(self.size**3, EMPTY, np.int64)
        grid[self.positions] = self.labels.astype(np.int64)  # twice as fast as cast in passing
        return grid.reshape(self.size, self.size, self.size)


def check_size(size: int) -> None:
    """Raise `UsageError` for sizes beyond the bit packing of `voxelize` and memory."""
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise UsageError(f"voxel grid size must be {MIN_SIZE} to {MAX_SIZE}, got {size}")


def voxel_positions(points: NDArray[np.floating], size: int) -> NDArray[np.int32]:
    r"""Return the flat voxel position of every point [N, 3] in a grid of edge s.

    Points are divided by the largest norm, without centring, so that the shape fills the unit
    ball; then :math:`v = \lfloor p \cdot d / 2 + s / 2 \rfloor` with d = s - 1, the largest
    integer for which a point on the ball's surface stays within 0 to s - 1.
    """
    check_size(size)
    axes = np.array(points.T, order="C")  # whole rows are much faster than steps of three
    squares = axes * axes
    radius = np.sqrt((squares[0] + squares[1] + squares[2]).max(initial=0.0))
    if not np.isfinite(radius) or radius == 0.0:
        raise IntegrityError("the points are not finite, or all lie in the origin")
    axes *= (size - 1) / (2.0 * radius)
    axes += size / 2.0
    x, y, z = axes.astype(np.int32)  # nothing is below zero: cutting off is rounding down
    x *= size
    x += y
    x *= size
    x += z
    return np.asarray(x)


def voxelize(points: NDArray[np.floating], labels: NDArray[np.integer], size: int) -> Voxels:
    """Voxelize points [N, 3] with labels 0 to 254; a voxel takes its points' most frequent label.

    Ties go to the smallest label. No loop over points: (voxel, label) pairs are packed into one
    integer of 24 + 8 bits and sorted; equal ones are counted, and the best of a voxel is taken.
    """
    if len(points) != len(labels):
        raise IntegrityError(f"{len(points)} points but {len(labels)} labels")
    pairs = voxel_positions(points, size).view(np.uint32)
    pairs <<= 8
    pairs |= labels.astype(np.uint32)
    pairs.sort()
    first = _run_starts(pairs)
    votes = np.empty_like(first)
    votes[:-1] = first[1:]
    votes[-1] = len(pairs)
    votes -= first

    # The largest of a voxel has the most votes and, among equals, the smallest label.
    candidates = pairs[first]
    votes <<= 8
    votes -= candidates & 0xFF
    candidates >>= 8
    first = _run_starts(candidates)
    best = np.maximum.reduceat(votes, first)
    return Voxels(size, candidates[first].astype(np.int64), (-best).astype(np.uint8))


def _run_starts(values: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Where runs of equal values begin."""
    begins = np.empty(len(values), np.bool_)
    begins[0] = True
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    return begins.nonzero()[0]
