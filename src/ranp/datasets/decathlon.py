"""Segmentation in the layout of the Medical Segmentation Decathlon, or in nnU-Net's raw layout.

- Decathlon: `imagesTr/<case>.nii.gz` (4D where there are several modalities), `labelsTr` with the
  same names, and `dataset.json` with `modality` and `labels` ("1": "name").
- nnU-Net: `imagesTr/<case>_0000.nii.gz`, one file per channel, `labelsTr/<case>.nii.gz`, and
  `dataset.json` with `channel_names` and `labels` ("name": 1, or a list of labels).

Volumes are read as they are stored, without resampling to a common spacing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranp.datasets import label_volumes
from ranp.datasets.crops import normalise
from ranp.datasets.label_volumes import VolumeCase, VolumeReader, read_images
from ranp.datasets.nifti import read_labels, read_shape, write_volume
from ranp.datasets.pictures import draw_volumes
from ranp.datasets.registry import Dataset, Facts, Metadata, register_dataset
from ranp.datasets.splits import choose_fold, stratified_folds
from ranp.datasets.synthetic.tumours import draw_phantom
from ranp.datasets.tasks import Segmentation
from ranp.datasets.verification import (
    Inventory,
    Problem,
    abbreviate,
    check_range,
    checks,
    files_by_stem,
)
from ranp.errors import IntegrityError, UsageError
from ranp.files import write_text

_LAYOUTS = (("imagesTr", "labelsTr"), ("images", "labels"))
_SUFFIXES = (".nii.gz", ".nii")
_CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")
_BODY = -500.0  # HU; what is denser is not air
_PHANTOM_LABELS = {"oedema": 1, "non-enhancing": 2, "enhancing": 3}
_PHANTOM_MODALITIES = ("FLAIR", "T1w", "t1gd", "T2w")


@dataclass(frozen=True)
class Description:
    """Content of `dataset.json`.

    Attributes:
        modalities: Names of the channels, such as "MRI" or "CT".
        regions: Labels of every region to segment, by its name.
        listed: Names of the training cases, where they are listed.
        one_file_per_channel: Whether the layout is nnU-Net's.
    """

    modalities: tuple[str, ...]
    regions: Mapping[str, tuple[int, ...]]
    listed: tuple[str, ...] = ()
    one_file_per_channel: bool = False

    @property
    def labels(self) -> tuple[int, ...]:
        """All labels, background first."""
        return (0, *sorted({label for labels in self.regions.values() for label in labels}))


@dataclass(frozen=True, kw_only=True)
class DescribedCase(VolumeCase):
    """A case, with the description of its data set."""

    description: Description


def read_description(directory: Path) -> Description:
    """Read `dataset.json`.

    Raises:
        UsageError: There is none, or it asks for what is not supported.
        IntegrityError: It is damaged.
    """
    path = directory / "dataset.json"
    try:
        content = json.loads(path.read_bytes())
        native = "channel_names" in content
        names = content["channel_names"] if native else content["modality"]
        modalities = tuple(str(names[str(index)]) for index in range(len(names)))
        pairs = content["labels"].items()
        named = pairs if native else [(name, int(label)) for label, name in pairs]
        regions = {str(name): _as_labels(labels) for name, labels in named}
        listed = tuple(_stem(Path(entry["image"])) for entry in content.get("training", ()))
    except FileNotFoundError as error:
        raise UsageError(
            f"'{path}' does not exist; expected the layout of the Medical Segmentation Decathlon "
            "or of nnU-Net's raw data: dataset.json, imagesTr and labelsTr"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"'{path}' is damaged or not a description: {error!r}") from error
    if "ignore" in regions or content.get("file_ending", ".nii.gz") != ".nii.gz":
        raise UsageError(
            f"'{path}': an ignore label and files other than .nii.gz are not supported"
        )
    regions = {name: labels for name, labels in regions.items() if labels != (0,)}
    if not modalities or not regions:
        raise IntegrityError(f"'{path}' names {len(modalities)} channels and {len(regions)} labels")
    return Description(modalities, regions, () if native else listed, native)


def _as_labels(value: Any) -> tuple[int, ...]:
    labels = tuple(int(label) for label in (value if isinstance(value, list) else [value]))
    if not labels or not all(0 <= label <= 255 for label in labels):
        raise ValueError(f"labels must be 0 to 255, got {value}")
    return labels


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".nii")


def list_cases(directory: Path, description: Description) -> Inventory:
    """List a directory's cases; those without image or label are named in the notes."""
    layouts = [[directory / name for name in names] for names in _LAYOUTS]
    layout = next((folders for folders in layouts if all(f.is_dir() for f in folders)), None)
    if layout is None:
        raise UsageError(
            f"'{directory}' holds no volumes with labels; expected imagesTr and labelsTr, or "
            "images and labels, with .nii.gz files"
        )
    (files, problems), (labels, foreign) = (files_by_stem(f, _SUFFIXES, "volume") for f in layout)
    images, incomplete = _grouped(files, description)
    problems += [*foreign, *incomplete]
    folds = stratified_folds(dict.fromkeys(images.keys() & labels.keys(), "all"))
    names = sorted(images.keys() | labels.keys())
    cases = [
        DescribedCase(
            name, images.get(name, ()), labels.get(name), folds.get(name), description=description
        )
        for name in names
    ]
    notes = [
        f"{case.id}: {'no label' if case.images else 'a label without an image'}; skipped"
        for case in cases
        if not (case.images and case.labels)
    ]
    absent = [name for name in description.listed if name not in names]
    if absent:
        reason = f"{abbreviate(absent)} listed but absent"
        problems.append(Problem(str(directory / "dataset.json"), reason))
    return Inventory(cases, problems, notes)


def _grouped(
    files: Mapping[str, Path], description: Description
) -> tuple[dict[str, tuple[Path, ...]], list[Problem]]:
    """Images of every case: one file, or in nnU-Net's layout one per channel."""
    if not description.one_file_per_channel:
        return {name: (path,) for name, path in files.items()}, []
    channels: dict[str, dict[int, Path]] = {}
    problems = []
    for name, path in files.items():
        match = _CHANNEL.fullmatch(name)
        if match is None:
            problems.append(Problem(str(path), "not named <case>_0000.nii.gz"))
        else:
            channels.setdefault(match["case"], {})[int(match["channel"])] = path
    wanted = list(range(len(description.modalities)))
    grouped = {}
    for case, by_channel in channels.items():
        if sorted(by_channel) == wanted:
            grouped[case] = tuple(by_channel[channel] for channel in wanted)
        else:
            folder = next(iter(by_channel.values())).parent
            reason = f"has channels {sorted(by_channel)}, not {wanted}"
            problems.append(Problem(str(folder / case), reason))
    return grouped, problems


def read_case(case: DescribedCase) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Read a case's raw channels [C, X, Y, Z] and labels [X, Y, Z], which must be known ones."""
    images, labels = label_volumes.read_images_and_labels(case, len(case.description.modalities))
    known = case.description.labels
    unknown = set(np.unique(labels).tolist()) - set(known)
    if unknown:
        raise IntegrityError(
            f"'{case.labels}' has label {min(unknown)}; known are {', '.join(map(str, known))}"
        )
    return images, labels


def normalised(images: NDArray[Any], modalities: Sequence[str]) -> NDArray[np.float32]:
    """Normalise channels [C, X, Y, Z] by their modality.

    CT is clipped to the 0.5 and 99.5 percentile of the body and becomes a z-score over it. Others
    are clipped to the 0.2 and 99.8 percentile and become z-scores: over all voxels, or over those
    that are not 0 where more than a half are 0, as after skull stripping.
    """
    channels = []
    for image, modality in zip(images, modalities, strict=True):
        if modality.upper() == "CT":
            body = image[image > _BODY].astype(np.float32)
            low, high = np.percentile(body, [0.5, 99.5]) if body.size else (-1.0, 1.0)
            inside = np.clip(body, low, high) if body.size else np.zeros(1, np.float32)
            clipped = np.clip(image.astype(np.float32), low, high)
            channels.append((clipped - inside.mean()) / (inside.std() or 1.0))
        else:
            present = image != 0
            whole = present.mean() >= 0.5
            channels.append(normalise(image, np.ones(image.shape, bool) if whole else present))
    return np.stack(channels).astype(np.float32)


@dataclass(frozen=True)
class DecathlonReader(VolumeReader):
    """Reads cases whose channels are normalised by their modality."""

    @property
    def metadata(self) -> Metadata:
        """Modalities of the channels and labels of the regions."""
        description = self.cases[0].description
        regions = {name: list(labels) for name, labels in description.regions.items()}
        return {"modalities": list(description.modalities), "regions": regions}

    def load(self, case: DescribedCase) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Read a case and normalise its channels."""
        images, labels = read_case(case)
        return normalised(images, case.description.modalities), labels


def inventory(directory: Path) -> Inventory:
    """List a directory's cases; see `list_cases`."""
    return list_cases(directory, read_description(directory))


def open_reader(directory: Path, split: str, *, size: int = 64, fold: int = 0) -> DecathlonReader:
    """Open one split: "train" has random crops around labels, "validation" whole volumes."""
    cases = choose_fold(directory, inventory(directory).cases, split, fold)
    return DecathlonReader(cases, size, "random" if split == "train" else "none")


@checks(path=lambda case: case.images[0] if case.images else case.labels)
def check(case: DescribedCase) -> Iterator[tuple[str, str]]:
    """Read all volumes of a case and count its labels and status."""
    images: Iterable[NDArray[Any]] = ()
    present: Sequence[int] = ()
    if case.images and case.labels:
        images, labels = read_case(case)
        present = np.unique(labels).tolist()
    elif case.images:
        images = read_images(case.images, len(case.description.modalities)).data
    elif case.labels:
        read_labels(case.labels)
    for number, image in enumerate(images):
        check_range(case.images[number % len(case.images)], image)
    yield "cases", "paired" if case.images and case.labels else "unpaired"
    if case.fold is not None:
        yield "fold", str(case.fold)
    for label in present:
        yield "label", str(label)


def describe(directory: Path) -> Facts:
    """Read the headers of all labelled cases."""
    description = read_description(directory)
    cases = [case for case in list_cases(directory, description).cases if case.fold is not None]
    if not cases:
        raise UsageError(f"'{directory}' has no case with image and label")
    shapes = [read_shape(case.labels) for case in cases if case.labels]
    depth, height, width = (int(length) for length in np.median(shapes, axis=0))
    # A cube of about as many voxels as a volume has.
    size = min(max(8 * round((depth * height * width) ** (1 / 3) / 8), 16), 128)
    channels, classes = len(description.modalities), max(description.labels) + 1
    return Facts(channels, classes, (depth, height, width), len(cases), size)


def write(directory: Path, *, cases: int, size: int, seed: int, classes: int) -> None:
    """Write brain phantoms in the Decathlon's layout: 4D volumes of four modalities."""
    drawn = (_draw(size, seed, index) for index in range(cases))
    volumes = ((np.moveaxis(images, 0, -1), labels) for images, labels in drawn)
    labels_named = {"0": "background", **{str(v): k for k, v in _PHANTOM_LABELS.items()}}
    write_cases(directory, "phantom", _PHANTOM_MODALITIES, labels_named, volumes)


def write_cases(
    directory: Path,
    name: str,
    modalities: Sequence[str],
    labels: Mapping[str, str],
    volumes: Iterable[tuple[NDArray[Any], NDArray[np.uint8]]],
) -> None:
    """Write images with their labels, and a `dataset.json` as the Decathlon has it."""
    files = []
    for index, (image, label) in enumerate(volumes):
        files.append(f"{name}_{index:05d}.nii.gz")
        write_volume(directory / "imagesTr" / files[-1], image, np.eye(4))
        write_volume(directory / "labelsTr" / files[-1], label, np.eye(4))
    content = {
        "name": f"{name.capitalize()} (synthetic)",
        "modality": {str(index): modality for index, modality in enumerate(modalities)},
        "labels": dict(labels),
        "numTraining": len(files),
        "training": [{"image": f"./imagesTr/{f}", "label": f"./labelsTr/{f}"} for f in files],
    }
    write_text(directory / "dataset.json", json.dumps(content, indent=1) + "\n")


def _draw(size: int, seed: int, index: int) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Draw a phantom with consecutive labels: oedema 1, non-enhancing 2, enhancing 3."""
    phantom = draw_phantom(size, seed, index)
    return phantom.images, np.array([0, 2, 1, 0, 3], np.uint8)[phantom.labels]


def sample(index: int, *, volume: tuple[int, int, int], seed: int, classes: int) -> dict[str, Any]:
    """Draw a whole phantom: `x` [4, S, S, S] normalised, `y` [S, S, S] in 0 to 3."""
    images, labels = _draw(volume[-1], seed, index)
    return {"x": normalised(images, _PHANTOM_MODALITIES), "y": labels.astype(np.int64)}


def make_task(*, window: int, metadata: Metadata) -> Segmentation:
    """Make the task: cross-entropy + (1 - Dice); Dice per region, whole volumes by windows."""
    regions = {name: tuple(labels) for name, labels in metadata.get("regions", {}).items()}
    return Segmentation(regions, window=window)


def read_input(source: Path, metadata: Metadata) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Read a volume and normalise it; of nnU-Net's layout, its file `_0000` and those beside it."""
    modalities = metadata["modalities"]
    paths = [source]
    match = _CHANNEL.fullmatch(_stem(source))
    if match is not None and len(modalities) > 1:
        names = (f"{match['case']}_{channel:04d}" for channel in range(len(modalities)))
        paths = [source.with_name(source.name.replace(_stem(source), name)) for name in names]
    images = read_images(paths, len(modalities))
    return normalised(images.data, modalities), images.affine


DECATHLON = register_dataset(
    Dataset(
        name="decathlon",
        about="any data set in the layout of the Medical Segmentation Decathlon or nnU-Net",
        recipe="decathlon-unet3d",
        size=64,
        task_name="segmentation",
        task=make_task,
        predict=partial(label_volumes.predict_labels, read_input),
        draw=draw_volumes,
        whole_volumes=True,
        inventory=inventory,
        check=check,
        open_reader=open_reader,
        write=write,
        sample=sample,
        describe=describe,
    )
)
