"""I3D: Inception-v1 inflated to three dimensions, for clips of video."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranp.models.registry import register_network


class Widths(NamedTuple):
    """Channels inside one Inception block, in the order in which its layers run."""

    branch0: int
    branch1_reduce: int
    branch1: int
    branch2_reduce: int
    branch2: int
    branch3: int


@register_network("i3d", about="I3D (inflated Inception-v1)")
@register_network(
    "i3d-ucf101",
    options={"in_channels": 3, "classes": 101},
    input_shape=(1, 3, 16, 224, 224),
    about="I3D (inflated Inception-v1), action recognition in 16 frames of 224 x 224",
    dataset="ucf101",
    sparsity=0.2532,
    lam=80.0,
)
class I3D(nn.Module):
    """I3D with the widths of Inception-v1 (Szegedy et al., 2015, Table 1).

    Every unit pads as TensorFlow's 'same' does: by the input's size, more at the end than at the
    beginning. The input needs at least 9 frames of 193 x 193; with larger ones the logits are
    averaged over time and space.

    Args:
        in_channels: Channels of a frame.
        classes: Number of classes.
    """

    def __init__(self, in_channels: int = 3, classes: int = 101) -> None:
        super().__init__()
        self.conv1 = Unit(in_channels, 64, kernel_size=7, stride=2)
        self.pool1 = SameMaxPool3d(kernel_size=(1, 3, 3), stride=(1, 2, 2))
        self.conv2 = Unit(64, 64, kernel_size=1)
        self.conv3 = Unit(64, 192, kernel_size=3)
        self.pool2 = SameMaxPool3d(kernel_size=(1, 3, 3), stride=(1, 2, 2))
        self.mixed_3b = Inception(192, Widths(64, 96, 128, 16, 32, 32))
        self.mixed_3c = Inception(256, Widths(128, 128, 192, 32, 96, 64))
        self.pool3 = SameMaxPool3d(kernel_size=(3, 3, 3), stride=(2, 2, 2))
        self.mixed_4b = Inception(480, Widths(192, 96, 208, 16, 48, 64))
        self.mixed_4c = Inception(512, Widths(160, 112, 224, 24, 64, 64))
        self.mixed_4d = Inception(512, Widths(128, 128, 256, 24, 64, 64))
        self.mixed_4e = Inception(512, Widths(112, 144, 288, 32, 64, 64))
        self.mixed_4f = Inception(528, Widths(256, 160, 320, 32, 128, 128))
        self.pool4 = SameMaxPool3d(kernel_size=(2, 2, 2), stride=(2, 2, 2))
        self.mixed_5b = Inception(832, Widths(256, 160, 320, 32, 128, 128))
        self.mixed_5c = Inception(832, Widths(384, 192, 384, 48, 128, 128))
        self.pool5 = nn.AvgPool3d(kernel_size=(2, 7, 7), stride=1)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Conv3d(1024, classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map clips (N, in_channels, frames, height, width) to logits (N, classes)."""
        x = self.pool1(self.conv1(x))
        x = self.pool2(self.conv3(self.conv2(x)))
        x = self.pool3(self.mixed_3c(self.mixed_3b(x)))
        x = self.mixed_4d(self.mixed_4c(self.mixed_4b(x)))
        x = self.pool4(self.mixed_4f(self.mixed_4e(x)))
        x = self.pool5(self.mixed_5c(self.mixed_5b(x)))
        logits: Tensor = self.head(self.dropout(x))
        return logits.mean(dim=(2, 3, 4))


class Inception(nn.Module):
    """Four branches side by side: 1x1x1; 1x1x1 then 3x3x3, twice; max pool then 1x1x1."""

    def __init__(self, in_channels: int, widths: Widths) -> None:
        super().__init__()
        self.branch0 = Unit(in_channels, widths.branch0, kernel_size=1)
        self.branch1_reduce = Unit(in_channels, widths.branch1_reduce, kernel_size=1)
        self.branch1 = Unit(widths.branch1_reduce, widths.branch1, kernel_size=3)
        self.branch2_reduce = Unit(in_channels, widths.branch2_reduce, kernel_size=1)
        self.branch2 = Unit(widths.branch2_reduce, widths.branch2, kernel_size=3)
        self.branch3_pool = SameMaxPool3d(kernel_size=(3, 3, 3), stride=(1, 1, 1))
        self.branch3 = Unit(in_channels, widths.branch3, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, ...) to the branches' channels at the same resolution."""
        branches = [
            self.branch0(x),
            self.branch1(self.branch1_reduce(x)),
            self.branch2(self.branch2_reduce(x)),
            self.branch3(self.branch3_pool(x)),
        ]
        return torch.cat(branches, dim=1)


class Unit(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(
        self, in_channels: int, out_channels: int, *, kernel_size: int, stride: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size, stride=stride, bias=False)
        self.norm = nn.BatchNorm3d(out_channels, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, D, ...) to (N, out_channels, ceil(D / stride), ...)."""
        return F.relu(self.norm(self.conv(pad_same(x, self.conv.kernel_size, self.conv.stride))))


class SameMaxPool3d(nn.MaxPool3d):
    """Max pool after zero padding to ceil(size / stride); its inputs are never negative here."""

    kernel_size: tuple[int, int, int]
    stride: tuple[int, int, int]

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, D, ...) to (N, C, ceil(D / stride), ...)."""
        pooled: Tensor = super().forward(pad_same(x, self.kernel_size, self.stride))
        return pooled


def pad_same(x: Tensor, kernel_size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Pad the last three dimensions with zeros so that ceil(size / stride) windows fit.

    An odd amount puts the extra zero at the end, as TensorFlow does and `padding="same"` of
    PyTorch cannot with a stride.
    """
    padding: list[int] = []
    for size, kernel, step in zip(x.shape[2:], kernel_size, stride, strict=True):
        windows = -(-size // step)
        missing = max((windows - 1) * step + kernel - size, 0)
        padding = [missing // 2, missing - missing // 2, *padding]  # F.pad starts at the last one
    return F.pad(x, padding) if any(padding) else x
