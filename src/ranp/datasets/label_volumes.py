"""Volumes with labels in NIfTI files: what BraTS and the Decathlon's layouts have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ranp.datasets.crops import centre_corner, crop_or_pad, random_corner
from ranp.datasets.nifti import Volume, check_same_geometry, read_labels, read_volume, write_volume
from ranp.datasets.registry import CaseReader, Metadata, Predictor
from ranp.errors import IntegrityError, UsageError


@dataclass(frozen=True)
class VolumeCase:
    """Files of a case; without images or labels it has no fold and is skipped.

    Attributes:
        id: Name of the case.
        images: One file, or one per channel; empty if absent.
        labels: File of the labels; None if absent.
        fold: Fold that it validates in.
    """

    id: str
    images: tuple[Path, ...]
    labels: Path | None
    fold: int | None = None


def read_images(paths: Sequence[Path], channels: int) -> Volume:
    """Read a case's raw channels [C, X, Y, Z] from one file or from one file per channel."""
    if len(paths) == 1:
        volume = read_volume(paths[0], channels=channels)
        data = volume.data[None] if channels == 1 else np.moveaxis(volume.data, -1, 0)
        return Volume(data, volume.affine)
    volumes = [read_volume(path) for path in paths]
    check_same_geometry(paths, volumes)
    return Volume(np.stack([volume.data for volume in volumes]), volumes[0].affine)


def read_images_and_labels(
    case: VolumeCase, channels: int
) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Read a case's raw channels [C, X, Y, Z] and labels [X, Y, Z], both as stored.

    Raises:
        IntegrityError: A file is damaged or absent, or the geometry differs between files.
    """
    if not case.images or case.labels is None:
        raise IntegrityError(f"case '{case.id}' lacks its {'labels' if case.images else 'image'}")
    images = read_images(case.images, channels)
    first = Volume(images.data[0], images.affine)
    labels = read_labels(case.labels, like=first)
    check_same_geometry((case.images[0], case.labels), (first, labels))
    return images.data, labels.data


@dataclass(frozen=True)
class VolumeReader(CaseReader):
    """Base of readers of volumes: `x` [C, ...] normalised and `y` [...]; implement `load`.

    Attributes:
        crop: "random" around a labelled voxel, "centre", or "none" for whole volumes. Where a
            volume is shorter than the cube, it is centred between zeros: zero is the mean of `x`
            and the background of `y`.
    """

    crop: Literal["random", "centre", "none"] = "random"

    def load(self, case: Any) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Read a case: its normalised channels [C, X, Y, Z] and its labels [X, Y, Z]."""
        raise NotImplementedError

    def read(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """Read a case, and crop or pad it."""
        x, labels = self.load(self.cases[index])
        y = labels.astype(np.int64)
        if self.crop == "none":
            return {"x": x, "y": y}
        if self.crop == "random":
            corner = random_corner(labels, self.size, rng)
        else:
            corner = centre_corner(labels.shape, self.size)
        return {"x": crop_or_pad(x, corner, self.size), "y": crop_or_pad(y, corner, self.size)}


InputReader = Callable[[Path, Metadata], tuple[NDArray[np.float32], NDArray[np.float64]]]
"""Reads an input by its path: normalised channels [C, X, Y, Z], and the affine."""


def predict_labels(
    read_input: InputReader,
    network: Predictor,
    source: Path,
    target: Path,
    *,
    metadata: Metadata,
    **_: Any,
) -> dict[str, Any]:
    """Predict an input, write its labels with the same affine, and return how often each occurs."""
    if not target.name.endswith(".nii.gz"):
        raise UsageError(f"'{target}': label volumes are written as .nii.gz; name it so")
    x, affine = read_input(source, metadata)
    labels = network(x).argmax(0).numpy()
    write_volume(target, labels.astype(np.uint8), affine)
    values, counts = np.unique(labels, return_counts=True)
    return {"voxels": {str(v): int(n) for v, n in zip(values, counts, strict=True)}}
