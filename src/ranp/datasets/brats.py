"""BraTS: `<case>_{flair,t1,t1ce,t2,seg}.nii.gz`, in HGG / LGG folders (2018, 2019) or flat (later).

Labels: 0 background, 1 necrosis, 2 oedema, 4 enhancing tumour. Some later releases write 3 for
enhancing tumour: that is read as 4, and said by the verifier.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ranp.datasets import label_volumes
from ranp.datasets.crops import normalise
from ranp.datasets.label_volumes import VolumeCase, VolumeReader, read_images
from ranp.datasets.nifti import write_volume
from ranp.datasets.pictures import draw_volumes
from ranp.datasets.registry import Dataset, Metadata, register_dataset
from ranp.datasets.splits import choose_fold, stratified_folds
from ranp.datasets.synthetic.tumours import draw_phantom
from ranp.datasets.tasks import Batch, Segmentation
from ranp.datasets.verification import Checked, Inventory, Problem, abbreviate, check_range, checks
from ranp.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

MODALITIES = ("flair", "t1", "t1ce", "t2")
"""The order of the input's channels."""

ENHANCING = 4
REGIONS: Mapping[str, tuple[int, ...]] = {"ET": (4,), "TC": (1, 4), "WT": (1, 2, 4)}
"""What is evaluated: enhancing tumour, tumour core, whole tumour, as sets of labels."""

_AFFINE = np.diag([-1.0, -1.0, 1.0, 1.0])  # of generated volumes: 1 mm, axes as in BraTS
_FILE = re.compile(r"(?P<case>.+)_(?P<what>flair|t1|t1ce|t2|seg)\.nii(\.gz)?")
_GRADES = ("HGG", "LGG")
_ENHANCING_HEADING = "enhancing tumour is label"


@dataclass(frozen=True)
class BratsCase(VolumeCase):
    """Files of a case: the four modalities in the order of `MODALITIES`, and the segmentation.

    Attributes:
        grade: "HGG" or "LGG" by folder, "ungraded" in the flat layouts.
    """

    grade: str = "ungraded"


def read_case(case: BratsCase) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Read a case's raw images [4, X, Y, Z] and labels [X, Y, Z], which must be known ones."""
    images, labels = label_volumes.read_images_and_labels(case, len(MODALITIES))
    present = set(np.unique(labels).tolist())
    unknown = present - {0, 1, 2, 3, 4}
    if unknown:
        raise IntegrityError(f"'{case.labels}' has label {min(unknown)}; BraTS has 0, 1, 2 and 4")
    if {3, 4} <= present:
        raise IntegrityError(
            f"'{case.labels}' has labels 3 and 4; one alone can be enhancing tumour"
        )
    return images, labels


def _normalised(images: NDArray[Any]) -> NDArray[np.float32]:
    """Normalise every modality over its brain."""
    return np.stack([normalise(image, image != 0) for image in images])


class BratsReader(VolumeReader):
    """Reads cases whose modalities are normalised over their brain; labels are 0, 1, 2, 4."""

    def load(self, case: BratsCase) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Read a case, normalise it, and take 3 as enhancing tumour."""
        images, labels = read_case(case)
        return _normalised(images), np.where(labels == 3, np.uint8(ENHANCING), labels)


def open_reader(directory: Path, split: str, *, size: int = 128, fold: int = 0) -> BratsReader:
    """Open one split: "train" has random crops around labels, "validation" whole volumes."""
    cases = choose_fold(directory, inventory(directory).cases, split, fold)
    return BratsReader(cases, size, "random" if split == "train" else "none")


def inventory(directory: Path) -> Inventory:
    """List a directory's cases by file names, at any depth."""
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
        cases.append(BratsCase(name, images, files.get("seg"), grade=grade))
        if "seg" not in files:
            notes.append(f"{name}: no segmentation; skipped")
    if not cases and not problems:
        raise UsageError(
            f"'{directory}' holds no BraTS data; expected files named <case>_flair.nii.gz, "
            "_t1, _t1ce, _t2 and _seg, in folders HGG and LGG or flat"
        )
    folds = stratified_folds({case.id: case.grade for case in cases if case.labels})
    return Inventory([replace(c, fold=folds.get(c.id)) for c in cases], problems, notes)


@checks(path=lambda case: case.images[0].parent / case.id)
def check(case: BratsCase) -> Iterator[tuple[str, str]]:
    """Read all volumes of a case and count its grade, shape and labels."""
    yield "grade", case.grade
    yield "fold", "none" if case.fold is None else str(case.fold)
    present: list[int] = []
    if case.labels is None:
        images = read_images(case.images, len(MODALITIES)).data
    else:
        images, labels = read_case(case)
        present = np.unique(labels).tolist()
        stored = max({3, 4} & set(present), default=None)
        if stored == 3 and case.grade in _GRADES:
            raise IntegrityError(
                f"'{case.labels}' has label 3, where this layout writes 0, 1, 2 and 4"
            )
        yield _ENHANCING_HEADING, "none" if stored is None else str(stored)
    for path, image in zip(case.images, images, strict=True):
        check_range(path, image)
    yield "shape", "x".join(map(str, images.shape[1:]))
    for label in present:
        yield "label", str(label)


def conclude(checked: Sequence[Checked]) -> tuple[list[Problem], list[str]]:
    """Require the label of enhancing tumour to be the same one, 3 or 4, in all cases."""
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
    reason = f"enhancing tumour is labelled {odd}, but {usual} in {abbreviate(by_label[usual])}"
    return [Problem(case, reason) for case in by_label[odd]], []


def write(directory: Path, *, cases: int, size: int, seed: int, classes: int) -> None:
    """Write brain phantoms in the layout of BraTS 2018: HGG and LGG, a folder per case."""
    for index in range(cases):
        phantom = draw_phantom(size, seed, index)
        name = f"Synthetic_{index:05d}_1"
        folder = directory / phantom.grade / name
        for modality, image in zip(MODALITIES, phantom.images, strict=True):
            write_volume(folder / f"{name}_{modality}.nii.gz", image, _AFFINE)
        write_volume(folder / f"{name}_seg.nii.gz", phantom.labels, _AFFINE)


def sample(index: int, *, volume: tuple[int, int, int], seed: int, classes: int) -> dict[str, Any]:
    """Draw a whole phantom: `x` [4, S, S, S] normalised, `y` [S, S, S] in 0, 1, 2, 4."""
    phantom = draw_phantom(volume[-1], seed, index)
    return {"x": _normalised(phantom.images), "y": phantom.labels.astype(np.int64)}


class AuthorsSegmentation(Segmentation):
    """The task with the loss of the paper's authors, who sum over the classes 1 to 4.

    Scoring: cross-entropy + sum_c 0.25 (1 - Dice_c); training: 0.01 cross-entropy + the same sum.
    """

    def loss(self, output: Tensor, batch: Batch, cross_entropy: float = 0.01) -> Tensor:
        """Return weighted cross-entropy + the Dice losses of the foreground."""
        from ranp.datasets.losses import cross_entropy_and_foreground_dice

        return cross_entropy_and_foreground_dice(
            output, batch["y"], self.dice_weight, cross_entropy
        )

    def scoring_loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return cross-entropy + the Dice losses of the foreground."""
        return self.loss(output, batch, cross_entropy=1.0)


_LOSSES = {"printed": Segmentation, "authors": AuthorsSegmentation}
"""Losses: cross-entropy + 0.25 (1 - mean Dice), the formula of the appendix with the sign of its
Dice term put right; the authors' own."""


def make_task(*, window: int, metadata: Metadata, loss: str = "printed") -> Segmentation:
    """Make the paper's task, Dice and IoU of ET, TC and WT, with one of `_LOSSES`."""
    return _LOSSES[loss](REGIONS, dice_weight=0.25, window=window, with_iou=True)


def with_loss(dataset: Dataset, value: Any) -> Dataset:
    """Return the data set with another loss."""
    if value not in _LOSSES:
        raise UsageError(f"loss must be one of {', '.join(_LOSSES)}, got {value!r}")
    return replace(dataset, task=partial(make_task, loss=value))


def read_input(source: Path, metadata: Metadata) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Read a folder with the four modalities of a case and normalise them."""
    if not source.is_dir():
        raise UsageError(f"'{source}': name the folder with a case's four modalities")
    cases = inventory(source).cases
    if len(cases) != 1:
        raise UsageError(f"'{source}' holds {len(cases)} whole cases; name the folder of one")
    images = read_images(cases[0].images, len(MODALITIES))
    return _normalised(images.data), images.affine


register_dataset(
    Dataset(
        name="brats",
        about="BraTS, brain tumours in four MR contrasts",
        recipe="brats-unet3d",
        size=128,
        task_name="brats",
        task=make_task,
        predict=partial(label_volumes.predict_labels, read_input),
        draw=partial(draw_volumes, channels=MODALITIES),
        whole_volumes=True,
        options={"loss": with_loss},
        inventory=inventory,
        check=check,
        open_reader=open_reader,
        write=write,
        sample=sample,
        conclude=conclude,
    )
)
