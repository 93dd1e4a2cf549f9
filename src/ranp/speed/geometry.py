"""How a 3D convolution moves over its input, and the call of oneDNN that computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Sizes = tuple[int, int, int]

# What ATen asks of the input before it calls oneDNN (use_mkldnn in Convolution.cpp).
_FEWEST_ROWS = 20480
_FEWEST_POINTWISE_SAMPLES = 16


@dataclass(frozen=True)
class Geometry:
    """How a 3D convolution moves over its input."""

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int

    @classmethod
    def of(cls, module: nn.Conv3d) -> Geometry:
        """Return the geometry of a module, whose padding is given in numbers."""
        given = (module.kernel_size, module.stride, module.padding, module.dilation)
        kernel, stride, padding, dilation = map(_three, given)
        return cls(kernel, stride, padding, dilation, module.groups)

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a matrix product at every voxel."""
        return (
            self.kernel == self.stride == (1, 1, 1)
            and self.padding == (0, 0, 0)
            and self.groups == 1
        )

    @property
    def swapped_padding(self) -> Sizes:
        """The padding with which the gradient's volume, moved over the input's, meets it."""
        reach = zip(self.kernel, self.dilation, self.padding, strict=True)
        return _three([d * (k - 1) - p for k, d, p in reach])

    @property
    def is_swappable(self) -> bool:
        """Whether input and gradient can change places in the weight gradient."""
        return self.stride == (1, 1, 1) and self.groups == 1 and min(self.swapped_padding) >= 0

    @property
    def mirrored(self) -> Geometry:
        """The geometry with which the output's gradient is convolved to that of the input."""
        return Geometry(self.kernel, self.stride, self.swapped_padding, self.dilation, 1)

    def reaches_onednn(self, samples: int, channels: int, depth: int, height: int) -> bool:
        """Return whether ATen sends an input of this size to oneDNN."""
        pointwise = self.kernel[1:] == (1, 1)
        moves = max(self.stride) > 1 or max(self.dilation) > 1
        return (
            moves
            or samples >= _FEWEST_POINTWISE_SAMPLES
            or not pointwise
            or torch.get_num_threads() > 1
        ) and (
            self.groups > 1
            or min(self.kernel[1:]) > 3
            or samples > 1
            or samples * channels * depth * height > _FEWEST_ROWS
        )


def _three(values: Any) -> Sizes:
    a, b, c = values
    return int(a), int(b), int(c)


def mirrored(weight: Tensor) -> Tensor:
    """Return the weight with which the output's gradient is convolved to that of the input."""
    return weight.flip(2, 3, 4).transpose(0, 1)


def forward_onednn(x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
    """Call oneDNN whatever the shape."""
    out: Tensor = torch.ops.aten.mkldnn_convolution(
        x, weight, bias, g.padding, g.stride, g.dilation, g.groups
    )
    return out
