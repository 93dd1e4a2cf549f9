"""Hippocampus (Medical Segmentation Decathlon, Task04): small T1 crops, labels 0, 1, 2.

An instance of the Decathlon's layout in which `dataset.json` may be absent and the folders may be
called `images` and `labels`. Samples are cubes, in validation too: at 64 no volume of the real
data set loses a voxel. Labels: 0 background, 1 anterior, 2 posterior.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ranp.datasets import decathlon
from ranp.datasets.crops import centre_corner, crop_or_pad
from ranp.datasets.decathlon import DecathlonReader, Description
from ranp.datasets.label_volumes import predict_labels
from ranp.datasets.registry import Predictor, register_dataset
from ranp.datasets.splits import choose_fold
from ranp.datasets.synthetic.hippocampi import draw_crop
from ranp.datasets.tasks import Segmentation
from ranp.datasets.verification import Inventory

if TYPE_CHECKING:
    from torch import Tensor

REGIONS = {"anterior": (1,), "posterior": (2,)}
_MODALITIES = ("MRI",)


def inventory(directory: Path) -> Inventory:
    """List a directory's cases; those without image or label are named in the notes."""
    description = Description(_MODALITIES, REGIONS)
    if (directory / "dataset.json").exists():
        found = decathlon.read_description(directory)
        description = replace(found, modalities=_MODALITIES, regions=REGIONS)
    return decathlon.list_cases(directory, description)


def open_reader(directory: Path, split: str, *, size: int = 64, fold: int = 0) -> DecathlonReader:
    """Open one split: cubes around a labelled voxel for training, in the centre for validation."""
    cases = choose_fold(directory, inventory(directory).cases, split, fold)
    return DecathlonReader(cases, size, "random" if split == "train" else "centre")


def write(directory: Path, *, cases: int, size: int, seed: int, classes: int) -> None:
    """Write hippocampus phantoms in the Decathlon's layout, with `dataset.json`."""
    volumes = (draw_crop(size, seed, index) for index in range(cases))
    labels = {"0": "background", "1": "Anterior", "2": "Posterior"}
    decathlon.write_cases(directory, "hippocampus", _MODALITIES, labels, volumes)


def sample(index: int, *, volume: tuple[int, int, int], seed: int, classes: int) -> dict[str, Any]:
    """Draw a crop centred in a cube: `x` [1, S, S, S] normalised, `y` [S, S, S] in 0, 1, 2."""
    size = volume[-1]
    image, labels = draw_crop(size, seed, index)
    corner = centre_corner(labels.shape, size)
    x, y = decathlon.normalised(image[None], _MODALITIES), labels.astype(np.int64)
    return {"x": crop_or_pad(x, corner, size), "y": crop_or_pad(y, corner, size)}


def predict(
    network: Predictor, source: Path, target: Path, *, size: int, **settings: Any
) -> dict[str, Any]:
    """Predict a volume in a cube as in validation; write labels with the same affine."""

    def in_cube(x: NDArray[np.float32]) -> Tensor:
        shape = x.shape[1:]
        edge = max(size, *shape)
        corner = centre_corner(shape, edge)
        inside = tuple(slice(-c, -c + n) for c, n in zip(corner, shape, strict=True))
        return network(crop_or_pad(x, corner, edge))[(slice(None), *inside)]

    settings["metadata"] = {"modalities": _MODALITIES}
    return predict_labels(decathlon.read_input, in_cube, source, target, **settings)


register_dataset(
    replace(
        decathlon.DECATHLON,
        name="hippocampus",
        about="Decathlon Task04, the two parts of the hippocampus in T1 MRI",
        recipe="hippocampus-unet3d",
        describe=None,
        task_name="hippocampus",
        task=lambda window, metadata: Segmentation(REGIONS),
        whole_volumes=False,
        inventory=inventory,
        open_reader=open_reader,
        write=write,
        sample=sample,
        predict=predict,
    )
)
