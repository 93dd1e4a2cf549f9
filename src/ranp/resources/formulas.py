"""The operations of a leaf module as a formula of living channels: one home for every rule."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from torch import nn

from ranp.graph import Alive, ChannelGraph, Count, ModuleCall, measure

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


def operations(
    module: nn.Module, call: ModuleCall, graph: ChannelGraph, alive: Alive, convention: Convention
) -> Count | None:
    """Return the operations of a traced call of a leaf module; None if there is no formula."""
    out = measure(call.output, alive)
    if isinstance(module, (nn.modules.conv._ConvNd, nn.Linear)):
        layer, bias = graph.layers[call.name], int(module.bias is not None)
        inputs = measure((layer.inputs,), alive)
        if isinstance(module, nn.Linear):
            return out * (2 * inputs - 1 + bias)
        # A depthwise convolution has as many groups as living inputs.
        products = 1 if layer.is_depthwise else inputs // layer.groups
        products = products * math.prod(module.kernel_size)
        return out * (2 * products - 1 + bias if convention == "appendix" else products + bias)
    if isinstance(module, _NORMS):
        return out * 4
    if isinstance(module, _AVERAGE_POOLS):
        return out * (_kernel_volume(module) + 1)
    if isinstance(module, _ADAPTIVE_AVERAGE_POOLS):
        return out * (measure(call.inputs, alive) // np.maximum(out, 1) + 1)
    if isinstance(module, (nn.Softmax, nn.LogSoftmax, nn.Softmax2d)):
        batch, channels = call.output[:2]
        return measure((batch,), alive) * (3 * measure((channels,), alive) - 1)
    is_free = isinstance(module, nn.Identity) or any(
        kind.__module__ in _FREE for kind in type(module).__mro__
    )
    return out * 0 if is_free else None


def _kernel_volume(pool: nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d) -> int:
    """Return the volume of a kernel given by one size per dimension or one size for all."""
    kernel = pool.kernel_size
    dimensions = int(type(pool).__name__.rstrip("d")[-1])
    return kernel**dimensions if isinstance(kernel, int) else math.prod(kernel)
