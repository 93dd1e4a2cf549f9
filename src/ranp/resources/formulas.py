"""The operations of a leaf module as a formula of living channels: one home for every rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import nn

from ranp.graph import Alive, ChannelGraph, Count, Extent, ModuleCall, measure

Convention = Literal["paper", "appendix", "macs"]

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_ADAPTIVE_AVERAGE_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_FREE = (
    nn.modules.activation.__name__,
    nn.modules.pooling.__name__,
    nn.modules.dropout.__name__,
    nn.modules.upsampling.__name__,
    nn.modules.padding.__name__,
    nn.modules.flatten.__name__,
    nn.modules.pixelshuffle.__name__,
    nn.modules.channelshuffle.__name__,
)


@dataclass(frozen=True)
class Convolution:
    """out x (inputs / groups x kernel + bias); in the appendix out x (2 x ... - 1 + bias).

    Attributes:
        inputs: Channels that go in.
        groups: None where there are as many as living inputs (depthwise).
        kernel: Volume of the kernel.
        bias: 1 or 0.
    """

    inputs: Extent
    groups: int | None
    kernel: int
    bias: int

    def operations(self, out: Count, alive: Alive, convention: Convention) -> Count:
        """Operations for so many output elements."""
        inputs = 1 if self.groups is None else measure(self.inputs, alive) // self.groups
        products = inputs * self.kernel
        if convention == "appendix":
            return out * (2 * products - 1 + self.bias)
        return out * (products + self.bias)


@dataclass(frozen=True)
class Linear:
    """out x (2 x inputs - 1 + bias)."""

    inputs: Extent
    bias: int

    def operations(self, out: Count, alive: Alive, convention: Convention) -> Count:
        """Operations for so many output elements."""
        return out * (2 * measure(self.inputs, alive) - 1 + self.bias)


@dataclass(frozen=True)
class PerElement:
    """out x cost: normalisation 4, average pooling the kernel's volume + 1, others nothing."""

    cost: int

    def operations(self, out: Count, alive: Alive, convention: Convention) -> Count:
        """Operations for so many output elements."""
        return out * self.cost


@dataclass(frozen=True)
class AdaptivePooling:
    """out x (elements in / elements out + 1)."""

    inputs: Extent

    def operations(self, out: Count, alive: Alive, convention: Convention) -> Count:
        """Operations for so many output elements."""
        return out * (measure(self.inputs, alive) // np.maximum(out, 1) + 1)


@dataclass(frozen=True)
class Softmax:
    """batch x (3 x channels - 1)."""

    batch: int
    channels: Extent

    def operations(self, out: Count, alive: Alive, convention: Convention) -> Count:
        """Operations for so many output elements."""
        return self.batch * (3 * measure(self.channels, alive) - 1)


Formula = Convolution | Linear | PerElement | AdaptivePooling | Softmax


def formula_of(module: nn.Module, call: ModuleCall, graph: ChannelGraph) -> Formula | None:
    """Return what a call of a leaf module costs; None if there is no formula for it."""
    if isinstance(module, (nn.modules.conv._ConvNd, nn.Linear)):
        layer = graph.layers[call.name]
        inputs, bias = (layer.inputs,), int(module.bias is not None)
        if isinstance(module, nn.Linear):
            return Linear(inputs, bias)
        groups = None if layer.is_depthwise else layer.groups
        return Convolution(inputs, groups, math.prod(module.kernel_size), bias)
    if isinstance(module, _NORMS):
        return PerElement(4)
    if isinstance(module, _AVERAGE_POOLS):
        return PerElement(_volume(module, module.kernel_size) + 1)
    if isinstance(module, _ADAPTIVE_AVERAGE_POOLS):
        return AdaptivePooling(call.inputs)
    if isinstance(module, (nn.Softmax, nn.LogSoftmax, nn.Softmax2d)):
        batch, channels = call.output[:2]
        assert isinstance(batch, int)
        return Softmax(batch, (channels,))
    free = isinstance(module, nn.Identity) or any(
        kind.__module__ in _FREE for kind in type(module).__mro__
    )
    return PerElement(0) if free else None


def _volume(module: nn.Module, kernel: int | Sequence[int]) -> int:
    """Return the volume of a kernel given by one size per dimension or one size for all."""
    dimensions = int(type(module).__name__.rstrip("d")[-1])
    return kernel**dimensions if isinstance(kernel, int) else math.prod(kernel)
