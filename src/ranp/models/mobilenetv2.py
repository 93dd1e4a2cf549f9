"""MobileNetV2 with 3D convolutions, for clips of video."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranp.models.registry import register_network


class Stage(NamedTuple):
    """One row of the network's table: `repeats` blocks, the first of them with `stride`."""

    expansion: int
    channels: int
    repeats: int
    stride: int


STAGES = (
    Stage(expansion=1, channels=16, repeats=1, stride=1),
    Stage(expansion=6, channels=24, repeats=2, stride=2),
    Stage(expansion=6, channels=32, repeats=3, stride=2),
    Stage(expansion=6, channels=64, repeats=4, stride=2),
    Stage(expansion=6, channels=96, repeats=3, stride=1),
    Stage(expansion=6, channels=160, repeats=3, stride=2),
    Stage(expansion=6, channels=320, repeats=1, stride=1),
)
"""The (t, c, n, s) table of the 2D network (Sandler et al., 2018, Table 2)."""

_STEM_CHANNELS = 32
_LAST_CHANNELS = 1280


@register_network("mobilenetv2", about="MobileNetV2-3D")
@register_network(
    "mobilenetv2-ucf101",
    options={"in_channels": 3, "classes": 101},
    input_shape=(1, 3, 16, 112, 112),
    about="MobileNetV2-3D, action recognition in 16 frames of 112 x 112",
    dataset="ucf101",
    sparsity=0.3315,
    lam=80.0,
)
class MobileNetV2(nn.Module):
    """MobileNetV2-3D: the 2D network's table with 3D convolutions; the stem keeps all frames.

    Args:
        in_channels: Channels of a frame.
        classes: Number of classes.
    """

    def __init__(self, in_channels: int = 3, classes: int = 101) -> None:
        super().__init__()
        self.stem = ConvUnit(in_channels, _STEM_CHANNELS, kernel_size=3, stride=(1, 2, 2))
        self.blocks = nn.Sequential()
        channels = _STEM_CHANNELS
        for stage in STAGES:
            for repeat in range(stage.repeats):
                stride = stage.stride if repeat == 0 else 1
                self.blocks.append(
                    InvertedResidual(channels, stage.channels, stride, stage.expansion)
                )
                channels = stage.channels
        self.last = ConvUnit(channels, _LAST_CHANNELS, kernel_size=1)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(_LAST_CHANNELS, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map clips (N, in_channels, frames, height, width) to logits (N, classes)."""
        x = self.last(self.blocks(self.stem(x)))
        x = torch.flatten(F.adaptive_avg_pool3d(x, 1), start_dim=1)
        logits: Tensor = self.head(self.dropout(x))
        return logits


class InvertedResidual(nn.Module):
    """Widens by a 1x1x1 convolution, filters depthwise, narrows again; adds its input if it can."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = in_channels * expansion
        self.is_residual = stride == 1 and in_channels == out_channels
        self.expand = ConvUnit(in_channels, wide, kernel_size=1) if expansion > 1 else None
        self.depthwise = ConvUnit(wide, wide, kernel_size=3, stride=stride, groups=wide)
        self.project = ConvUnit(wide, out_channels, kernel_size=1, activation=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, ...) to (N, out_channels, ...)."""
        y: Tensor = x if self.expand is None else self.expand(x)
        y = self.project(self.depthwise(y))
        return x + y if self.is_residual else y


class ConvUnit(nn.Module):
    """Convolution without bias, batch norm, and ReLU6 unless the unit is linear."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel_size: int,
        stride: int | tuple[int, int, int] = 1,
        groups: int = 1,
        activation: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv3d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=kernel_size // 2,
            groups=groups,
            bias=False,
        )
        self.norm = nn.BatchNorm3d(out_channels)
        self.relu = nn.ReLU6(inplace=True) if activation else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, ...) to (N, out_channels, ...)."""
        x = self.norm(self.conv(x))
        return x if self.relu is None else self.relu(x)
