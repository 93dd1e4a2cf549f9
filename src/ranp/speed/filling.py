"""Thin convolutions with the channels last, computed so that vector registers are full.

oneDNN computes as many output channels at a time as a register holds, 16 with AVX-512 and 8 with
AVX2; a layer of 7 leaves most of the former idle. Each way here gives the result of the plain
convolution, and none is the fastest for all shapes: they are timed against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ranp.resources.machine import vector_width
from ranp.speed.geometry import Geometry, forward_onednn


def _padded(x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
    """Call oneDNN with output channels of zeros up to whole vectors, and drop those.

    What is left over after whole vectors takes oneDNN longer than one more vector: with AVX2,
    84 -> 21 channels at 32^3 51 ms, 84 -> 24 37 ms.
    """
    channels = weight.shape[0]
    more = -channels % vector_width()
    weight = F.pad(weight, (0, 0) * 4 + (0, more))
    y = forward_onednn(x, weight, None if bias is None else F.pad(bias, (0, more)), g)
    return y[:, :channels].contiguous(memory_format=torch.channels_last_3d)


def _paired(x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
    """Compute two neighbours along the width as channels of one voxel.

    Their kernel is one wider and moves by two: 4/3 of the products for 14 of 16 numbers of a
    register in place of 7. In memory the pairs lie as the voxels do. With AVX-512, 41 -> 7
    channels at 48^3 take 27 ms, not 38.
    """
    channels = weight.shape[0]
    both = torch.cat([F.pad(weight, (0, 1)), F.pad(weight, (1, 0))])
    kernel, stride = (*g.kernel[:2], g.kernel[2] + 1), (*g.stride[:2], 2)
    g = replace(g, kernel=kernel, stride=stride)
    y = forward_onednn(x, both, None if bias is None else bias.repeat(2), g)
    samples, _, depth, height, pairs = y.shape
    voxels = y.permute(0, 2, 3, 4, 1).reshape(samples, depth, height, 2 * pairs, channels)
    return voxels.permute(0, 4, 1, 2, 3)


def _summed(x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
    """Compute the columns of the kernel as channels, and sum them with each shifted by its place.

    21 channels take 32 numbers for each of three columns, all three together 64. With AVX-512,
    84 -> 21 channels at 24^3 take 15 ms, not 18.
    """
    channels, columns = weight.shape[0], g.kernel[2]
    stacked = weight.permute(4, 0, 1, 2, 3).flatten(0, 1)[..., None]
    middle = columns // 2
    if bias is not None:
        bias = F.pad(bias, (middle * channels, (columns - middle - 1) * channels))
    g = replace(g, kernel=(*g.kernel[:2], 1), padding=(*g.padding[:2], 0))
    parts = forward_onednn(x, stacked, bias, g).permute(0, 2, 3, 4, 1)
    parts = parts.unflatten(-1, (columns, channels))
    y: Tensor = parts[..., middle, :].clone(memory_format=torch.contiguous_format)
    width = y.shape[3]
    for column in range(columns):
        shift = column - middle
        if shift and abs(shift) < width:
            source = parts[..., max(shift, 0) : width + min(shift, 0), column, :]
            y[..., max(-shift, 0) : width - max(shift, 0), :] += source
    return y.permute(0, 4, 1, 2, 3)


FILLING: dict[str, Callable[[Tensor, Tensor, Tensor | None, Geometry], Tensor]] = {
    "padded": _padded,
    "paired": _paired,
    "summed": _summed,
}


def available_fillings(g: Geometry, y: tuple[int, ...]) -> list[str]:
    """Return the ways that leave fewer numbers of registers idle."""
    channels, width = y[1], y[4]
    if g.groups > 1:
        return []
    ways = ["padded"] if channels % vector_width() else []
    columns = g.kernel[2]
    if g.stride[2] > 1 or g.dilation[2] > 1:
        return ways
    if width % 2 == 0 and _vectors(2 * channels) * (columns + 1) < 2 * _vectors(channels) * columns:
        ways.append("paired")
    is_centred = columns % 2 == 1 and g.padding[2] == columns // 2
    if is_centred and _vectors(columns * channels) < columns * _vectors(channels):
        ways.append("summed")
    return ways


def _vectors(channels: int) -> int:
    return -(-channels // vector_width())
