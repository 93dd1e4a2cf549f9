"""Arrays in JSON: runs where they are regular, base64 where they are not."""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack(values: NDArray[np.integer[Any]]) -> dict[str, str]:
    """Whole numbers from 0 on as base64 of 2 or 4 bytes each, little-endian."""
    kind = "u2" if values.size == 0 or values.max() < 2**16 else "u4"
    return {"dtype": kind, "base64": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()}


def constant_runs(values: NDArray[np.integer[Any]]) -> list[list[int]]:
    """[value, length] of every stretch of equal values."""
    starts = _starts(values, 0)
    return [[int(values[a]), int(b - a)] for a, b in _stretches(starts, len(values))]


def rising_runs(values: NDArray[np.integer[Any]]) -> list[list[int]]:
    """[first value, length] of every stretch that rises by one from each value to the next."""
    starts = _starts(values, 1)
    return [[int(values[a]), int(b - a)] for a, b in _stretches(starts, len(values))]


def _starts(values: NDArray[np.integer[Any]], step: int) -> NDArray[np.int64]:
    if len(values) == 0:
        return np.zeros(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(np.diff(values) != step) + 1])


def _stretches(starts: NDArray[np.int64], end: int) -> list[tuple[int, int]]:
    bounds = [*starts.tolist(), end]
    return list(pairwise(bounds))


def rounded(value: float) -> float:
    """Six significant digits: enough to draw and to read."""
    return float(f"{value:.6g}")
