"""Networks that are built in processes of their own."""

from __future__ import annotations

from torch import nn


def wide():
    return nn.Sequential(
        nn.Conv3d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv3d(32, 32, 3, padding=1), nn.ReLU(),
        nn.Conv3d(32, 3, 1),
    )  # fmt: skip
