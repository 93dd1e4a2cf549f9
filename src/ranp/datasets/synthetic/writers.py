"""Synthetic data sets written in the real formats, so that the real readers read them.

Every writer gives the same files for the same arguments, and holds the cases that the in-memory
data sets of the same seed and size hold.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ranp.datasets.brats import MODALITIES
from ranp.datasets.nifti import write_volume
from ranp.datasets.parts import CATEGORIES
from ranp.datasets.synthetic.hippocampi import check_crop_size, draw_crop
from ranp.datasets.synthetic.motion import MOTIONS, check_classes, draw_clip, render
from ranp.datasets.synthetic.shapes import draw_shape
from ranp.datasets.synthetic.tumours import check_phantom_size, draw_phantom
from ranp.datasets.video import write_video
from ranp.errors import UsageError
from ranp.files import ensure_directory, write_text

_BRATS_AFFINE = np.diag([-1.0, -1.0, 1.0, 1.0])  # 1 mm, axes as in BraTS
_CLIP_FRAMES = 40
_MIN_FRAME = 32


def write_shapenet(directory: Path, *, cases: int, size: int, seed: int) -> None:
    """Writes shapes in the layout of the ICCV-2017 challenge; a quarter each in val and test.

    Shapes are points: `size` has no effect, the reader chooses the grid.
    """
    ensure_directory(directory)
    for index in range(cases):
        shape = draw_shape(seed, index)
        # Rounds of 16 categories go to the folders in turn, so that each folder has them all.
        folder = ("train", "val", "train", "test")[index // len(CATEGORIES) % 4]
        synset, name = shape.category.synset, f"synthetic{index:05d}"
        points = "".join(f"{x:.5f} {y:.5f} {z:.5f}\n" for x, y, z in shape.points)
        labels = "".join(f"{label}\n" for label in shape.labels - shape.category.first + 1)
        write_text(directory / f"{folder}_data" / synset / f"{name}.pts", points)
        write_text(directory / f"{folder}_label" / synset / f"{name}.seg", labels)


def write_brats(directory: Path, *, cases: int, size: int, seed: int) -> None:
    """Writes brain phantoms in the layout of BraTS 2018: HGG and LGG, a folder per case."""
    check_phantom_size(size)
    ensure_directory(directory)
    for index in range(cases):
        phantom = draw_phantom(size, seed, index)
        name = f"Synthetic_{index:05d}_1"
        folder = directory / phantom.grade / name
        for modality, image in zip(MODALITIES, phantom.images, strict=True):
            write_volume(folder / f"{name}_{modality}.nii.gz", image, _BRATS_AFFINE)
        write_volume(folder / f"{name}_seg.nii.gz", phantom.labels, _BRATS_AFFINE)


def write_ucf101(directory: Path, *, cases: int, size: int, seed: int, classes: int = 10) -> None:
    """Writes clips of motion in a tree by class, with class index and lists of three splits.

    Frames are `size` high and a third wider, 40 per clip. The clips take turns in class, up to
    101 of them. In split k every fourth clip of a class, from the k-th on, is for testing.
    """
    if size < _MIN_FRAME or size % 2:
        raise UsageError(f"frames {size} high: choose an even number from {_MIN_FRAME} on")
    check_classes(classes)
    ensure_directory(directory)
    width = size * 4 // 3 // 2 * 2  # 4:3 as in UCF101, even as the codec wants it
    lists: dict[str, list[str]] = {}
    for index in range(cases):
        label, number = index % classes, index // classes
        name = MOTIONS[label].name
        clip = f"{name}/v_{name}_g{number + 1:02d}_c01.avi"
        video = render(draw_clip(classes, seed, index), _CLIP_FRAMES, size, width)
        write_video(directory / clip, video)
        for split in (1, 2, 3):
            if number % 4 == split:
                lists.setdefault(f"testlist{split:02d}", []).append(clip)
            else:
                lists.setdefault(f"trainlist{split:02d}", []).append(f"{clip} {label + 1}")
    folder = directory / "ucfTrainTestlist"
    names = [f"{label + 1} {MOTIONS[label].name}" for label in range(classes)]
    write_text(folder / "classInd.txt", "\n".join(names) + "\n")
    for split in (1, 2, 3):
        for name in (f"trainlist{split:02d}", f"testlist{split:02d}"):
            write_text(folder / f"{name}.txt", "\n".join(sorted(lists.get(name, []))) + "\n")


def write_hippocampus(directory: Path, *, cases: int, size: int, seed: int) -> None:
    """Writes hippocampus phantoms in the Decathlon's layout, with `dataset.json`."""
    check_crop_size(size)
    ensure_directory(directory)
    entries = []
    for index in range(cases):
        crop = draw_crop(size, seed, index)
        name = f"hippocampus_{index:05d}.nii.gz"
        write_volume(directory / "imagesTr" / name, crop.image, np.eye(4))
        write_volume(directory / "labelsTr" / name, crop.labels, np.eye(4))
        entries.append({"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"})
    description = {
        "name": "Hippocampus (synthetic)",
        "modality": {"0": "MRI"},
        "labels": {"0": "background", "1": "Anterior", "2": "Posterior"},
        "numTraining": cases,
        "training": entries,
    }
    write_text(directory / "dataset.json", json.dumps(description, indent=1) + "\n")
