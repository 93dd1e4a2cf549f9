"""Networks that tests name on the command line."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """Two convolutions without batch norm: what a sample gives depends on itself alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, 4, 3, padding=1)
        self.dropout = nn.Dropout(0.0)
        self.last = nn.Conv3d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.dropout(torch.relu(self.first(x))))


class Normed(Plain):
    """The same with batch norm and dropout: statistics and random numbers in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(self.first, nn.BatchNorm3d(4))
        self.dropout = nn.Dropout(0.5)


class Dropped(Plain):
    """The same with dropout, which needs random numbers in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
