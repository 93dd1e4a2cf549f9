"""Arrays in JSON."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack(values: NDArray[np.integer[Any]]) -> dict[str, str]:
    """Return unsigned integers as base64 of 2 or 4 bytes each, little-endian."""
    kind = "u2" if values.size == 0 or values.max() < 2**16 else "u4"
    return {"dtype": kind, "base64": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()}


def rounded(value: float) -> float:
    """Round to six significant digits: enough to draw and to read."""
    return float(f"{value:.6g}")
