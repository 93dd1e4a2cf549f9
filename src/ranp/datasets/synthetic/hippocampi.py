"""Phantoms in the manner of the Decathlon's hippocampus: one bent body with two labelled halves.

The body and its surroundings are of the same grey: a second, similar structure and folds of the
same intensity lie beside it, and the border between the two labels cannot be seen at all, it
follows from the body's course. Gain and noise differ from volume to volume.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranp.datasets.synthetic.fields import coordinates, smooth_field
from ranp.errors import UsageError

_STREAM = 4  # keeps the random numbers apart from those of the other generators
_MIN_SIZE = 24
_SHAPE = (0.55, 0.78, 0.56)  # the real median 35 x 50 x 36 relative to 64


def draw_crop(size: int, seed: int, index: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Draw crop `index` of the endless synthetic data set `seed`; it fits a cube of `size`.

    Returns:
        Raw intensities [X, Y, Z] and labels.
    """
    if size < _MIN_SIZE:  # structures would be thinner than a voxel
        raise UsageError(f"size of a hippocampus phantom must be at least {_MIN_SIZE}, got {size}")
    rng = np.random.default_rng([_STREAM, seed, index])
    shape = tuple(int(size * share * rng.uniform(0.88, 1.12)) for share in _SHAPE)
    x, y, z = coordinates(shape)
    labels = _body(x, y, z, rng)
    decoy = _decoy(x, y, z, rng)
    folds = smooth_field(rng, shape, 8)

    tissue = np.where(folds > 0.5, 0.72, np.where(folds < -1.0, 0.25, 1.0)).astype(np.float32)
    tissue = np.where((labels > 0) | decoy, np.float32(0.72), tissue)
    bias = 1 + 0.1 * smooth_field(rng, shape, 3)
    noise = rng.normal(0, 0.06, shape).astype(np.float32)
    gain = 10 ** rng.uniform(2, 5)  # the real volumes' maxima span four orders of magnitude
    image = gain * np.clip((tissue + noise) * bias, 0, None)
    return image.astype(np.int32), labels


def _body(
    x: NDArray[Any], y: NDArray[Any], z: NDArray[Any], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """A tube along y, thick in front and tapering to the back, bent sideways and upwards."""
    front, back = rng.uniform(0.55, 0.8), rng.uniform(-0.85, -0.6)
    along = (y - back) / (front - back)  # 0 at the back end, 1 at the front end
    bend_x, bend_z = rng.uniform(0.15, 0.45) * rng.choice((-1, 1)), rng.uniform(0.2, 0.5)
    x0, z0 = rng.uniform(-0.15, 0.15, 2)
    centre_x = x0 + bend_x * (along - 0.5) ** 2 * 2
    centre_z = z0 - bend_z * (along - 0.5)
    radius = (0.13 + 0.17 * np.clip(along, 0, 1)) * rng.uniform(0.9, 1.15)
    ends = np.clip(1 - np.abs(2 * along - 1) ** 6, 0, None)  # rounded, nothing beyond
    inside = (x - centre_x) ** 2 + (z - centre_z) ** 2 < (radius * radius * ends)
    border = rng.uniform(0.5, 0.6)
    return np.asarray(inside * np.where(along > border, 1, 2), np.uint8)


def _decoy(
    x: NDArray[Any], y: NDArray[Any], z: NDArray[Any], rng: np.random.Generator
) -> NDArray[np.bool_]:
    """An ellipsoid of the same intensity, off to one side: not every grey blob is a hippocampus."""
    side = rng.choice((-1.0, 1.0))
    centre = (side * rng.uniform(0.6, 0.8), rng.uniform(-0.5, 0.7), rng.uniform(-0.6, 0.6))
    radii = rng.uniform(0.2, 0.35, 3)
    offsets = zip((x, y, z), centre, radii, strict=True)
    return np.asarray(sum(((axis - c) / r) ** 2 for axis, c, r in offsets) < 1)
