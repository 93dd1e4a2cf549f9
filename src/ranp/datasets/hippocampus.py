"""Hippocampus (Medical Segmentation Decathlon, Task04): small T1 crops, labels 0, 1, 2.

Layouts: `imagesTr` and `labelsTr` (with `dataset.json`), or plain `images` and `labels`; a pair
has the same file name in both. Labels: 0 background, 1 anterior, 2 posterior.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ranp.datasets.crops import centre_corner, crop_or_pad, normalise, random_corner
from ranp.datasets.nifti import read_labels, read_volume, same_geometry
from ranp.datasets.splits import in_split, stratified_folds
from ranp.datasets.verification import Checked, Inventory, Problem, guarded, some
from ranp.datasets.verification import nothing_more as conclude
from ranp.errors import IntegrityError, UsageError

__all__ = ["HippocampusCase", "HippocampusReader", "check", "conclude", "inventory", "open_reader"]

LABELS = (0, 1, 2)
DEFAULT_SIZE = 64
_LAYOUTS = (("imagesTr", "labelsTr"), ("images", "labels"))


@dataclass(frozen=True)
class HippocampusCase:
    """An image and its labels; None where one is absent, and then without a fold: skipped."""

    id: str
    image: Path | None
    labels: Path | None
    fold: int | None = None


def read_case(case: HippocampusCase) -> tuple[Any, Any]:
    """Reads a case's raw image and labels [X, Y, Z].

    Raises:
        IntegrityError: A file is damaged or absent, the geometry differs, or a label is wrong.
    """
    if case.image is None or case.labels is None:
        raise IntegrityError(f"case '{case.id}' lacks its {'labels' if case.image else 'image'}")
    image, labels = read_volume(case.image), read_labels(case.labels)
    if not same_geometry(image, labels):
        raise IntegrityError(
            f"'{case.labels}' and its image differ in geometry: "
            f"{labels.data.shape} and {image.data.shape} voxels, or their affines"
        )
    unknown = set(np.unique(labels.data).tolist()) - set(LABELS)
    if unknown:
        raise IntegrityError(f"'{case.labels}' has label {min(unknown)}; known are 0, 1 and 2")
    return image.data, labels.data


@dataclass(frozen=True)
class HippocampusReader:
    """Reads cases as cubes: `x` [1, S, S, S] normalised and `y` [S, S, S].

    A volume smaller than the cube is centred in it, zeros around: zero is the mean of `x` and
    the background of `y`. A larger one is cropped: for training at random around a labelled
    voxel, otherwise in the centre. At 64 no volume of the real data set loses a voxel.
    """

    cases: tuple[HippocampusCase, ...]
    size: int
    training: bool

    @property
    def ids(self) -> Sequence[str]:
        """The cases' names."""
        return [case.id for case in self.cases]

    def read(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """Reads a case, normalises it over the whole volume, and crops or pads it."""
        image, labels = read_case(self.cases[index])
        corner = (
            random_corner(labels, self.size, rng)
            if self.training
            else centre_corner(labels.shape, self.size)
        )
        x = normalise(image, np.ones(image.shape, bool))[None]
        y = labels.astype(np.int64)
        return {"x": crop_or_pad(x, corner, self.size), "y": crop_or_pad(y, corner, self.size)}


def open_reader(
    directory: Path, split: str, *, size: int = DEFAULT_SIZE, fold: int = 0
) -> HippocampusReader:
    """Opens one split of a hippocampus directory: 5 fixed folds.

    Args:
        directory: The data set.
        split: "train" or "validation".
        size: Edge of the cubes.
        fold: Which fold validates, 0 to 4.
    """
    cases = inventory(directory).cases
    chosen = tuple(case for case in cases if in_split(case.fold, split, fold))
    if not chosen:
        raise UsageError(f"no case of split '{split}' in '{directory}': it has {len(cases)} cases")
    return HippocampusReader(chosen, size, split == "train")


def inventory(directory: Path) -> Inventory:
    """Lists a directory's cases; those without image or label are named in the notes."""
    for image_name, label_name in _LAYOUTS:
        if (directory / image_name).is_dir() and (directory / label_name).is_dir():
            break
    else:
        raise UsageError(
            f"'{directory}' holds no hippocampus data; expected imagesTr and labelsTr, "
            "or images and labels, with .nii.gz files"
        )
    images, foreign = _volumes(directory / image_name)
    labels, more_foreign = _volumes(directory / label_name)
    folds = stratified_folds(dict.fromkeys(images.keys() & labels.keys(), "all"))
    cases = [
        HippocampusCase(name, images.get(name), labels.get(name), folds.get(name))
        for name in sorted(images.keys() | labels.keys())
    ]
    notes = [
        f"{case.id}: {'no label' if case.image else 'a label without an image'}; skipped"
        for case in cases
        if case.image is None or case.labels is None
    ]
    problems = [*foreign, *more_foreign, *_unlisted(directory, {case.id for case in cases})]
    return Inventory(cases, problems, notes)


def _volumes(folder: Path) -> tuple[dict[str, Path], list[Problem]]:
    """Volumes by name without suffix; hidden files (macOS leaves many) do not count."""
    visible = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    volumes, foreign = {}, []
    for path in visible:
        name = path.name.removesuffix(".gz")
        if name.endswith(".nii"):
            volumes[name.removesuffix(".nii")] = path
        else:
            foreign.append(Problem(str(path), "a foreign file among the volumes"))
    return volumes, foreign


def _unlisted(directory: Path, here: set[str]) -> list[Problem]:
    """A problem if `dataset.json` lists training cases that are absent."""
    path = directory / "dataset.json"
    if not path.is_file():
        return []
    try:
        listed = [Path(entry["image"]).name for entry in json.loads(path.read_bytes())["training"]]
    except (ValueError, KeyError, TypeError) as error:
        return [Problem(str(path), f"is no list of cases: {error!r}")]
    names = [name.removesuffix(".gz").removesuffix(".nii") for name in listed]
    absent = [name for name in names if name not in here]
    return [Problem(str(path), f"{some(absent)} listed but absent")] if absent else []


def check(case: HippocampusCase) -> Checked:
    """Reads all volumes of a case and counts its labels and status."""
    first = case.image or case.labels
    assert first is not None

    def read() -> Iterator[tuple[str, str]]:
        if case.image is None or case.labels is None:
            read_volume(first)
            yield "cases", "unpaired"
            return
        _, labels = read_case(case)
        yield "cases", "paired"
        yield "fold", str(case.fold)
        for label in np.unique(labels):
            yield "label", str(label)

    return guarded(case.id, first, lambda: list(read()))
