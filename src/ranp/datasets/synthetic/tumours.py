"""Brain phantoms with tumours in the manner of BraTS: four modalities and nested regions.

No voxel can be told by its intensities: every tissue of the tumour has an impostor that looks the
same in all modalities and differs by form and place alone. Old lesions look like oedema, but are
small and have no core; vessels look like enhancing tumour, but are thin and run through the
brain; fluid looks like necrosis, but lies in ventricles and at the surface. Gain, bias field and
noise differ from volume to volume.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranp.datasets.synthetic.fields import coordinates, smooth_field
from ranp.errors import UsageError

Triple = tuple[float, ...] | NDArray[np.float64]
_STREAM = 2  # keeps the random numbers apart from those of the other generators
_MIN_SIZE = 24

# Mean intensities in flair, t1, t1ce, t2, relative to white matter = 1 in T1. The two names of a
# row are a tissue of the tumour and its impostor.
_OEDEMA = _LESION = (1.20, 0.70, 0.72, 1.25)
_ENHANCING = _VESSEL = (1.00, 0.72, 1.65, 0.95)
_NECROSIS = _FLUID = (0.25, 0.32, 0.34, 1.35)
_TISSUES = {
    "white": (0.55, 1.00, 1.02, 0.50),
    "grey": (0.68, 0.75, 0.77, 0.68),
    "fluid": _FLUID,
    "lesion": _LESION,
    "vessel": _VESSEL,
    "oedema": _OEDEMA,
    "enhancing": _ENHANCING,
    "necrosis": _NECROSIS,
}
_LABELS = {"oedema": 2, "necrosis": 1, "enhancing": 4}


@dataclass(frozen=True)
class Phantom:
    """A case: raw intensities [4, S, S, S] (0 outside the brain), labels, and its grade."""

    images: NDArray[np.int16]
    labels: NDArray[np.uint8]
    grade: str


def draw_phantom(size: int, seed: int, index: int) -> Phantom:
    """Draw phantom `index` of the endless synthetic data set `seed`."""
    if size < _MIN_SIZE:  # structures would be thinner than a voxel
        raise UsageError(f"the size of a brain phantom must be at least {_MIN_SIZE}, got {size}")
    rng = np.random.default_rng([_STREAM, seed, index])
    grade = "LGG" if rng.uniform() < 75 / 285 else "HGG"  # the proportion of BraTS 2018
    regions = _regions(size, rng, grade)
    brain = np.any(list(regions.values()), axis=0)

    means = np.zeros((len(_FLUID), size, size, size), np.float32)
    labels = np.zeros((size,) * 3, np.uint8)
    for name, region in regions.items():  # later regions lie over earlier ones
        means[:, region] = np.array(_TISSUES[name], np.float32)[:, None]
        labels[region] = _LABELS.get(name, 0)

    images = np.zeros(means.shape, np.int16)
    for modality, mean in enumerate(means):
        gain = rng.uniform(300, 1200)
        bias = 1 + 0.08 * smooth_field(rng, (size,) * 3, 3)
        texture = 0.05 * smooth_field(rng, (size,) * 3, 9)
        noise = rng.normal(0, 0.06, mean.shape).astype(np.float32)
        intensity = gain * np.clip((mean + texture + noise) * bias, 0.02, None)
        images[modality] = np.where(brain, intensity, 0).astype(np.int16)
    return Phantom(images, labels, grade)


def _regions(size: int, rng: np.random.Generator, grade: str) -> dict[str, NDArray[np.bool_]]:
    """The tissues as masks, in the order in which they are painted."""
    grid = (size,) * 3
    x, y, z = coordinates(grid)
    wobble = smooth_field(rng, grid, 5)
    folds = smooth_field(rng, grid, 12)

    def ball(centre: Triple, radii: Triple, rough: float) -> NDArray[Any]:
        """Distance from a centre in units of the radii, the outline roughened."""
        offsets = zip((x, y, z), centre, radii, strict=True)
        squared = sum((((axis - c) / r) ** 2 for axis, c, r in offsets), start=np.float32(0))
        return np.asarray(np.sqrt(squared) + np.float32(rough) * wobble)

    skull = ball((0, 0, 0), rng.uniform(0.72, 0.9, 3), 0.02)
    brain = skull < 1
    ventricle = np.minimum(
        ball((0.13, 0.05, 0.05), (0.08, 0.32, 0.16), 0.06),
        ball((-0.13, 0.05, 0.05), (0.08, 0.32, 0.16), 0.06),
    )
    spots = [
        ball(rng.uniform(-0.5, 0.5, 3), rng.uniform(0.09, 0.2, 3), 0.1)
        for _ in range(rng.integers(2, 5))
    ]
    lesions = np.min(spots, axis=0) < 1
    vessels = _vessels(rng, x, y, z, size)

    # The tumour lies in one hemisphere; its three surfaces are nested by construction.
    side = rng.choice((-1.0, 1.0))
    centre = (side * rng.uniform(0.25, 0.42), rng.uniform(-0.35, 0.35), rng.uniform(-0.3, 0.3))
    radius = rng.uniform(0.3, 0.46)
    depth = ball(centre, radius * rng.uniform(0.8, 1.25, 3), 0.18) + 0.1 * folds
    core = rng.uniform(0.5, 0.75)
    rim = core * (rng.uniform(0.4, 0.65) if grade == "HGG" else rng.uniform(0.75, 0.9))
    return {
        "white": brain,
        "grey": brain & (skull + 0.06 * folds > 0.82),
        "fluid": brain & ((ventricle < 1) | (skull > 0.97)),
        "lesion": brain & lesions & (depth > 1.25),  # apart, or they could not be told from oedema
        "vessel": brain & vessels,
        "oedema": brain & (depth < 1),
        "enhancing": brain & (depth < core),
        "necrosis": brain & (depth < rim),
    }


def _vessels(rng: np.random.Generator, x: Any, y: Any, z: Any, size: int) -> NDArray[np.bool_]:
    """A few wavy tubes through the brain, at least a voxel thick at any resolution."""
    thickness = max(0.05, 1.5 / size)
    mask = np.zeros((size,) * 3, bool)
    for _ in range(4):
        a, b = rng.uniform(-0.5, 0.5, 2)
        phase, bend = rng.uniform(0, 2 * np.pi), rng.uniform(0.05, 0.15)
        along, across, over = [(x, y, z), (y, z, x), (z, x, y)][int(rng.integers(3))]
        path = bend * np.sin(3 * along + phase)
        mask |= (across - a - path) ** 2 + (over - b + path) ** 2 < thickness**2
    return mask
