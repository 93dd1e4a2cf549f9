"""ResNet with 3D convolutions, for classification of volumes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranp.models.registry import register_network


@register_network("resnet3d", about="3D ResNet of basic blocks")
class ResNet3D(nn.Module):
    """3D ResNet: a stem that halves the resolution twice, then stages of basic blocks.

    Args:
        in_channels: Channels of the input volume.
        classes: Number of classes.
        stages: Number of stages; each but the first halves the resolution and doubles the width.
        blocks: Basic blocks per stage.
        base_width: Channels of stem and first stage.
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        *,
        stages: int = 4,
        blocks: int = 2,
        base_width: int = 64,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv3d(in_channels, base_width, 5, stride=2, padding=2, bias=False)
        self.norm = nn.BatchNorm3d(base_width)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool3d(3, stride=2, padding=1)
        self.stages = nn.Sequential()
        channels = base_width
        for stage in range(stages):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                width = base_width * 2**stage
                self.stages.append(BasicBlock(channels, width, stride))
                channels = width
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map volumes (N, in_channels, D, H, W) to logits (N, classes)."""
        x = self.pool(self.relu(self.norm(self.conv(x))))
        x = torch.flatten(F.adaptive_avg_pool3d(self.stages(x), 1), start_dim=1)
        logits: Tensor = self.head(x)
        return logits


class BasicBlock(nn.Module):
    """Two 3x3x3 convolutions with batch norm, and a shortcut, projected where shapes differ."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm3d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv3d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm3d(out_channels)
        self.shortcut: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv3d(in_channels, out_channels, 1, stride=stride, bias=False),
                nn.BatchNorm3d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, ...) to (N, out_channels, ...)."""
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        shortcut: Tensor = x if self.shortcut is None else self.shortcut(x)
        return F.relu(y + shortcut)
