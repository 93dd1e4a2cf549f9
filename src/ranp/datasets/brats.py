"""BraTS: `<case>_{flair,t1,t1ce,t2,seg}.nii.gz`, in HGG / LGG folders (2018, 2019) or flat (later).

Labels: 0 background, 1 necrosis, 2 oedema, 4 enhancing tumour. Some later releases write 3 for
enhancing tumour: that is read as 4, and said by the verifier.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranp.datasets.crops import crop_or_pad, normalise, random_corner
from ranp.datasets.nifti import Volume, read_labels, read_volume, same_geometry
from ranp.datasets.splits import in_split, stratified_folds
from ranp.datasets.verification import Checked, Inventory, Problem, guarded, some
from ranp.errors import IntegrityError, UsageError

MODALITIES = ("flair", "t1", "t1ce", "t2")
"""The order of the input's channels."""

ENHANCING = 4
REGIONS: Mapping[str, tuple[int, ...]] = {"ET": (4,), "TC": (1, 4), "WT": (1, 2, 4)}
"""What is evaluated: enhancing tumour, tumour core, whole tumour, as sets of labels."""

DEFAULT_SIZE = 128
_FILE = re.compile(r"(?P<case>.+)_(?P<what>flair|t1|t1ce|t2|seg)\.nii(\.gz)?")
_GRADES = ("HGG", "LGG")


@dataclass(frozen=True)
class BratsCase:
    """The files of a case.

    Attributes:
        id: The name before `_flair`.
        grade: "HGG" or "LGG" by folder, "ungraded" in the flat layouts.
        images: The four modalities, in the order of `MODALITIES`.
        labels: The segmentation; None where there is none (the challenge's own validation set).
        fold: Which of the 5 folds it is in, stratified by grade; None without segmentation.
    """

    id: str
    grade: str
    images: tuple[Path, ...]
    labels: Path | None
    fold: int | None = None


def regions(labels: NDArray[np.integer]) -> dict[str, NDArray[np.bool_]]:
    """The masks of ET, TC and WT in a label volume."""
    return {name: np.isin(labels, members) for name, members in REGIONS.items()}


def read_case(case: BratsCase) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Reads a case's raw images [4, X, Y, Z] and labels [X, Y, Z], both as stored.

    Raises:
        IntegrityError: A file is damaged, the geometry differs between files, or a label is wrong.
    """
    images = [read_volume(path) for path in case.images]
    _check_geometry(case.images, images)
    if case.labels is None:
        raise IntegrityError(f"case '{case.id}' has no segmentation")
    labels = read_labels(case.labels)
    _check_geometry((case.images[0], case.labels), [images[0], labels])
    _check_labels(case.labels, labels.data)
    return np.stack([image.data for image in images]), labels.data


def _check_geometry(paths: Sequence[Path], volumes: Sequence[Volume]) -> None:
    for path, volume in zip(paths[1:], volumes[1:], strict=True):
        if not same_geometry(volumes[0], volume):
            raise IntegrityError(
                f"'{path}' and '{paths[0].name}' differ in geometry: "
                f"{volume.data.shape} and {volumes[0].data.shape} voxels, or their affines"
            )


def enhancing_label(labels: NDArray[np.uint8]) -> int | None:
    """Which label stands for enhancing tumour, 3 or 4; None if the case has none."""
    return max({3, 4} & set(np.unique(labels).tolist()), default=None)


def _check_labels(path: Path, labels: NDArray[np.uint8]) -> None:
    present = set(np.unique(labels).tolist())
    unknown = present - {0, 1, 2, 3, 4}
    if unknown:
        raise IntegrityError(f"'{path}' has label {min(unknown)}; BraTS has 0, 1, 2 and 4")
    if {3, 4} <= present:
        raise IntegrityError(f"'{path}' has labels 3 and 4; one alone can be enhancing tumour")


@dataclass(frozen=True)
class BratsReader:
    """Reads normalised cases: `x` [4, ...] and `y` [...] with labels 0, 1, 2, 4.

    Attributes:
        cases: What to read.
        size: Edge of the random label-holding crop; None for whole volumes (see
            `ranp.datasets.crops.predict_whole`).
    """

    cases: tuple[BratsCase, ...]
    size: int | None

    @property
    def ids(self) -> Sequence[str]:
        """The cases' names."""
        return [case.id for case in self.cases]

    def read(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """Reads a case, normalises every modality over its brain, and crops."""
        images, labels = read_case(self.cases[index])
        x = np.stack([normalise(image, image != 0) for image in images])
        y = np.where(labels == 3, ENHANCING, labels).astype(np.int64)
        if self.size is not None:
            corner = random_corner(y, self.size, rng)
            x, y = crop_or_pad(x, corner, self.size), crop_or_pad(y, corner, self.size)
        return {"x": x, "y": y}


def open_reader(
    directory: Path, split: str, *, size: int = DEFAULT_SIZE, fold: int = 0
) -> BratsReader:
    """Opens one split of a BraTS directory: 5 folds, stratified by grade.

    Args:
        directory: The data set.
        split: "train" (random crops) or "validation" (whole volumes).
        size: Edge of the training crops.
        fold: Which fold validates, 0 to 4.
    """
    cases = inventory(directory).cases
    chosen = tuple(case for case in cases if in_split(case.fold, split, fold))
    if not chosen:
        raise UsageError(f"no case of split '{split}' in '{directory}': it has {len(cases)} cases")
    return BratsReader(chosen, size if split == "train" else None)


def inventory(directory: Path) -> Inventory:
    """Lists a directory's cases by file names, at any depth."""
    grouped: dict[str, dict[str, Path]] = {}
    problems = []
    for path in sorted(p for p in directory.rglob("*.nii*") if not p.name.startswith(".")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            problems.append(Problem(str(path), "not named <case>_flair, _t1, _t1ce, _t2 or _seg"))
        elif match["what"] in grouped.setdefault(match["case"], {}):
            problems.append(Problem(str(path), f"a second {match['what']} of this case"))
        else:
            grouped[match["case"]][match["what"]] = path
    cases, notes = [], []
    for name, files in grouped.items():
        missing = [modality for modality in MODALITIES if modality not in files]
        folder = next(iter(files.values())).parent
        if missing:
            problems.append(Problem(str(folder / name), f"has no {', '.join(missing)} volume"))
            continue
        grade = next(
            (grade for grade in _GRADES if grade in folder.relative_to(directory).parts), "ungraded"
        )
        images = tuple(files[modality] for modality in MODALITIES)
        cases.append(BratsCase(name, grade, images, files.get("seg")))
        if "seg" not in files:
            notes.append(f"{name}: no segmentation; skipped")
    if not cases and not problems:
        raise UsageError(
            f"'{directory}' holds no BraTS data; expected files named <case>_flair.nii.gz, "
            "_t1, _t1ce, _t2 and _seg, in folders HGG and LGG or flat"
        )
    folds = stratified_folds({case.id: case.grade for case in cases if case.labels})
    return Inventory([replace(c, fold=folds.get(c.id)) for c in cases], problems, notes)


def check(case: BratsCase) -> Checked:
    """Reads all volumes of a case and counts its grade, shape and labels."""

    def read() -> Iterator[tuple[str, str]]:
        yield "grade", case.grade
        yield "fold", "none" if case.fold is None else str(case.fold)
        if case.labels is None:
            volumes = [read_volume(path) for path in case.images]
            _check_geometry(case.images, volumes)
            shape, present = volumes[0].data.shape, []
        else:
            images, labels = read_case(case)
            shape, present = images.shape[1:], np.unique(labels).tolist()
            stored = enhancing_label(labels)
            if stored == 3 and case.grade in _GRADES:
                raise IntegrityError(
                    f"'{case.labels}' has label 3, where this layout writes 0, 1, 2 and 4"
                )
            yield _ENHANCING_HEADING, "none" if stored is None else str(stored)
        yield "shape", "x".join(map(str, shape))
        for label in present:
            yield "label", str(label)

    return guarded(case.id, case.images[0].parent / case.id, lambda: list(read()))


_ENHANCING_HEADING = "enhancing tumour is label"


def conclude(checked: Sequence[Checked]) -> tuple[list[Problem], list[str]]:
    """The label of enhancing tumour must be the same one, 3 or 4, in all cases."""
    by_label = {
        label: [case.case for case in checked if (_ENHANCING_HEADING, label) in case.counts]
        for label in ("3", "4")
    }
    if not by_label["3"]:
        return [], []
    if not by_label["4"]:
        return [], ["enhancing tumour is labelled 3 in this data set; it is read as 4"]
    odd = min(("3", "4"), key=lambda label: (len(by_label[label]), label))
    usual = "4" if odd == "3" else "3"
    reason = f"enhancing tumour is labelled {odd}, but {usual} in {some(by_label[usual])}"
    return [Problem(case, reason) for case in by_label[odd]], []
