"""Frames of a clip: which ones to take, how to cut them, and what the network is given."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MEAN = np.array([114.7748, 107.7354, 99.4750], np.float32)
"""The mean colour that is taken off every frame (RGB, 0 to 255), the one 3D-ResNets use."""


def to_input(frames: NDArray[np.uint8]) -> NDArray[np.float32]:
    """RGB frames [T, H, W, 3] as the network's input [3, T, H, W]: minus the mean, over 255."""
    centred = (frames.astype(np.float32) - MEAN) / np.float32(255)
    return np.ascontiguousarray(centred.transpose(3, 0, 1, 2))
