"""3D-UNet: encoder and decoder of double 3x3x3 convolutions, joined by skip connections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranp.errors import UsageError
from ranp.models.registry import register_network

_SHAPENET: Any = {"input_shape": (1, 1, 64, 64, 64), "dataset": "shapenet"}


@register_network("unet3d", about="3D-UNet of any depth and width")
@register_network(
    "unet3d-brats",
    options={"in_channels": 4, "classes": 5, "levels": 4, "base_width": 32},
    input_shape=(1, 4, 128, 128, 128),
    about="3D-UNet with 15 layers, brain tumour segmentation from four MR contrasts",
    dataset="brats",
    sparsity=0.7817,
    lam=15.0,
)
@register_network(
    "unet3d-23-shapenet",
    options={"in_channels": 1, "classes": 50, "levels": 6, "base_width": 64, "softmax": True},
    about="3D-UNet with 23 layers, part segmentation of voxelised shapes",
    sparsity=0.80,
    **_SHAPENET,
)
@register_network(
    "unet3d-shapenet",
    options={"in_channels": 1, "classes": 50, "levels": 4, "base_width": 64, "softmax": True},
    about="3D-UNet with 15 layers, part segmentation of voxelised shapes",
    sparsity=0.7824,
    **_SHAPENET,
)
class UNet3D(nn.Module):
    """3D-UNet with any number of levels.

    Level `i` of the encoder ends with `f_i = min(base_width * 2**i, width_cap)` channels; its
    first convolution gives half of that, but never fewer than come in. The decoder upsamples to
    the size of the skip (so any input size works), concatenates skip and upsampled features in
    this order, and goes back to `f_i`. With 4 levels it has 15 convolutions, with 6 levels 23.

    Args:
        in_channels: Channels of the input volume.
        classes: Channels of the output.
        levels: Resolutions, the first one included.
        base_width: Channels at full resolution.
        width_cap: No level is wider than this.
        softmax: Whether the network ends in a softmax over the classes. It runs in eval mode
            only: in training the loss wants logits.
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        *,
        levels: int = 4,
        base_width: int = 64,
        width_cap: int = 1024,
        softmax: bool = False,
    ) -> None:
        super().__init__()
        _require_positive(in_channels=in_channels, classes=classes, levels=levels)
        _require_positive(base_width=base_width, width_cap=width_cap)
        self.base_width = base_width
        widths = [min(base_width * 2**level, width_cap) for level in range(levels)]
        self.encoder = nn.ModuleList()
        channels = in_channels
        for level, width in enumerate(widths):
            halfway = max(width // 2, channels)
            self.encoder.append(DoubleConv(channels, halfway, width, downsample=level > 0))
            channels = width
        self.decoder = nn.ModuleList()
        for width in reversed(widths[:-1]):
            self.decoder.append(DoubleConv(width + channels, width, width, downsample=False))
            channels = width
        self.head = nn.Conv3d(channels, classes, kernel_size=1)
        self.softmax = nn.Softmax(dim=1) if softmax else None

    def forward(self, x: Tensor) -> Tensor:
        """Map a volume (N, in_channels, D, H, W) to class scores (N, classes, D, H, W)."""
        skips: list[Tensor] = []
        for level in self.encoder:
            x = level(x)
            skips.append(x)
        for level, skip in zip(self.decoder, reversed(skips[:-1]), strict=True):
            x = F.interpolate(x, size=skip.shape[2:], mode="nearest")
            x = level(torch.cat([skip, x], dim=1))
        x = self.head(x)
        if self.softmax is not None and not self.training:
            x = self.softmax(x)
        return x


class DoubleConv(nn.Module):
    """One level: two times convolution, batch norm, ReLU, after halving the resolution if asked."""

    def __init__(
        self, in_channels: int, mid_channels: int, out_channels: int, *, downsample: bool
    ) -> None:
        super().__init__()
        self.pool = nn.MaxPool3d(kernel_size=2) if downsample else None
        self.conv1 = nn.Conv3d(in_channels, mid_channels, kernel_size=3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm3d(mid_channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv3d(mid_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm3d(out_channels)
        self.relu2 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, ...) to (N, out_channels, ...)."""
        if self.pool is not None:
            x = self.pool(x)
        x = self.relu1(self.norm1(self.conv1(x)))
        out: Tensor = self.relu2(self.norm2(self.conv2(x)))
        return out


def _require_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"{name} of UNet3D must be at least 1, got {size}")
