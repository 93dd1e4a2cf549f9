"""Frames of a clip: sampling, cropping, and conversion to the network's input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MEAN = np.array([114.7748, 107.7354, 99.4750], np.float32)
"""Mean colour that is subtracted from every frame (RGB, 0 to 255), as in 3D-ResNets."""

DIVISOR = 255.0
"""Divisor of the colours; the paper's authors leave them at 0 to 255, a divisor of 1."""

SCALES = tuple(2 ** (-k / 4) for k in range(5))
"""Edges of the multi-scale crop relative to the picture's shorter side: 1 down to 1/2."""

_POSITIONS = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.5, 0.5))


@dataclass(frozen=True)
class Window:
    """A square to be cut out: its corner, its edge, and whether the picture is mirrored."""

    top: int
    left: int
    edge: int
    mirrored: bool = False


def random_start(total: int, count: int, rng: np.random.Generator) -> int:
    """Draw the first of `count` consecutive frames, evenly; 0 for a shorter clip."""
    return int(rng.integers(max(total - count, 0) + 1))


def centre_start(total: int, count: int) -> int:
    """Return the first of the `count` frames in the middle of a clip; 0 for a shorter clip."""
    return max(total - count, 0) // 2


def multi_scale_corner(height: int, width: int, rng: np.random.Generator) -> Window:
    """Draw the training window: a scale, a corner or the centre, mirrored or not."""
    edge = int(min(height, width) * SCALES[rng.integers(len(SCALES))])
    down, right = _POSITIONS[rng.integers(len(_POSITIONS))]
    top, left = round(down * (height - edge)), round(right * (width - edge))
    return Window(top, left, edge, mirrored=bool(rng.integers(2)))


def centre_square(height: int, width: int) -> Window:
    """Return the validation window: the largest square in the centre."""
    edge = min(height, width)
    return Window((height - edge) // 2, (width - edge) // 2, edge)


def crop_and_resize(frames: NDArray[np.uint8], window: Window, size: int) -> NDArray[np.uint8]:
    """Cut a square out of frames [T, H, W, 3] and resize it to `size`, bilinear, antialiased."""
    rows = slice(window.top, window.top + window.edge)
    columns = slice(window.left, window.left + window.edge)
    square = frames[:, rows, columns].astype(np.float32)
    if window.mirrored:
        square = square[:, :, ::-1]
    weights = _resize_weights(window.edge, size)
    # One matrix product per axis, with that axis next to the weights: [T, H, W, 3] ->
    # [T, S, W, 3], and with the colours moved forward -> [T, S, 3, S].
    tall = np.matmul(weights, square.reshape(len(frames), window.edge, -1))
    lines = tall.reshape(-1, window.edge, 3).transpose(0, 2, 1).reshape(-1, window.edge)
    both = np.matmul(lines, weights.T).reshape(len(frames), size, 3, size).transpose(0, 1, 3, 2)
    return np.asarray(np.clip(np.rint(both), 0, 255), np.uint8)


@lru_cache(maxsize=64)
def _resize_weights(length: int, size: int) -> NDArray[np.float32]:
    """Weights [size, length] of linear resampling; the triangle widens when it shrinks."""
    scale = length / size
    support = max(scale, 1.0)
    centres = (np.arange(size)[:, None] + 0.5) * scale
    distance = np.abs(np.arange(length)[None, :] + 0.5 - centres) / support
    weights = np.clip(1 - distance, 0, None)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)


def repeat_frames(frames: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Repeat a clip from its beginning until it has `count` frames."""
    return frames[np.arange(count) % len(frames)]


def to_input(frames: NDArray[np.uint8], divisor: float = DIVISOR) -> NDArray[np.float32]:
    """Return RGB frames [T, H, W, 3] as input [3, T, H, W]: minus the mean, over the divisor."""
    centred = (frames.astype(np.float32) - MEAN) / np.float32(divisor)
    return np.ascontiguousarray(centred.transpose(3, 0, 1, 2))
