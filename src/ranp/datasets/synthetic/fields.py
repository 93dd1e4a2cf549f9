"""Smooth random fields on grids: what makes the phantoms' outlines and intensities irregular."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def coordinates(shape: Sequence[int]) -> list[NDArray[np.float32]]:
    """Return voxel centres along each axis from -1 to 1, shaped to broadcast over the grid."""
    axes = []
    for axis, length in enumerate(shape):
        line = (2 * np.arange(length) + 1) / length - 1
        axes.append(line.astype(np.float32).reshape([-1 if a == axis else 1 for a in range(3)]))
    return axes


def smooth_field(rng: np.random.Generator, shape: Sequence[int], knots: int) -> NDArray[np.float32]:
    """Draw a random field of about unit variance: normal values on a coarse grid, interpolated.

    The number of knots per axis does not depend on the shape, so that a phantom looks the same at
    another resolution; fewer are smoother.
    """
    field = rng.normal(size=(knots, knots, knots)).astype(np.float32)
    for length in shape:  # separable: one axis at a time, the next one moves to the front
        field = np.tensordot(field, _interpolation(length, knots), axes=(0, 0))
    return field * np.float32(1.5)  # interpolation averages knots, which takes variance away


def _interpolation(length: int, knots: int) -> NDArray[np.float32]:
    """Weights [knots, length] of cosine interpolation between neighbouring knots."""
    position = np.linspace(0, knots - 1, length)
    left = np.minimum(position.astype(int), knots - 2)
    weight = (1 - np.cos(np.pi * (position - left))) / 2
    matrix = np.zeros((knots, length), np.float32)
    matrix[left, np.arange(length)] = 1 - weight
    matrix[left + 1, np.arange(length)] = weight
    return matrix
