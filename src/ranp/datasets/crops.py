"""Medical volumes: normalisation, label-holding crops, whole-volume prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ranp.errors import import_extra

if TYPE_CHECKING:
    import torch

LOW_PERCENTILE, HIGH_PERCENTILE = 0.2, 99.8


def normalise(volume: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Clip to the 0.2 and 99.8 percentile of the masked voxels, then take their z-score.

    Voxels outside of the mask become 0, the mean. Intensities of MRI have no unit: without this
    a volume's scale says more about the scanner than about the patient.

    Args:
        volume: Intensities of one modality.
        mask: The brain, or everything where the volume is no more than a part of a brain.
    """
    inside = volume[mask].astype(np.float32)
    normalised = np.zeros(volume.shape, np.float32)
    if inside.size:
        low, high = np.percentile(inside, [LOW_PERCENTILE, HIGH_PERCENTILE])
        inside = np.clip(inside, np.float32(low), np.float32(high))
        deviation = float(inside.std(dtype=np.float64))
        mean = float(inside.mean(dtype=np.float64))
        normalised[mask] = (inside - np.float32(mean)) / np.float32(deviation or 1.0)
    return normalised


def crop_or_pad(array: NDArray[Any], corner: tuple[int, ...], size: int) -> NDArray[Any]:
    """Cut a cube out of the last three axes from `corner` on; zeros where it leaves the array.

    A corner is negative where padding comes first.
    """
    lead = array.ndim - 3
    cube = np.zeros(array.shape[:lead] + (size,) * 3, array.dtype)
    source, target = [slice(None)] * lead, [slice(None)] * lead
    for start, length in zip(corner, array.shape[lead:], strict=True):
        source.append(slice(max(start, 0), max(min(start + size, length), 0)))
        target.append(slice(max(-start, 0), max(min(length - start, size), 0)))
    cube[tuple(target)] = array[tuple(source)]
    return cube


def centre_corner(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the corner of the centred cube; negative along axes shorter than it."""
    return tuple((length - size) // 2 for length in shape)


def random_corner(labels: NDArray[Any], size: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Return the corner of a random cube that holds at least one labelled voxel.

    A labelled voxel is drawn, then the cube uniformly among those that hold it and lie within
    the volume. Axes shorter than the cube are centred and padded. Without any label, any cube.
    """
    labelled = np.flatnonzero(labels)
    anchor = (
        np.unravel_index(labelled[rng.integers(labelled.size)], labels.shape)
        if labelled.size
        else tuple(int(rng.integers(length)) for length in labels.shape)
    )
    corner = []
    for voxel, length, centred in zip(
        anchor, labels.shape, centre_corner(labels.shape, size), strict=True
    ):
        low, high = max(int(voxel) - size + 1, 0), min(int(voxel), length - size)
        corner.append(int(rng.integers(low, high + 1)) if length > size else centred)
    return tuple(corner)


def predict_whole(
    network: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, window: int
) -> torch.Tensor:
    """Predict whole volumes [B, C, D, H, W] with MONAI's sliding-window inferer, blended smoothly.

    The edge of the window is usually the size of the training crops.
    """
    need = "sliding-window prediction needs MONAI"
    inferers = import_extra("monai.inferers", need, "medical")
    result: torch.Tensor = inferers.sliding_window_inference(
        x, (window,) * 3, 1, network, overlap=0.5, mode="gaussian"
    )
    return result
