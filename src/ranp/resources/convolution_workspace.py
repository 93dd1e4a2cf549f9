"""What PyTorch's convolutions take on a CPU besides inputs and outputs, for as long as they run.

Which kernel runs is PyTorch's own choice and asked of it. Its native kernels unfold the input:
every voxel of the output gets a column of input channels x kernel volume. Thin 3D convolutions at
batch 1 go there (N x C x D x H <= 20480), and on a single thread pointwise ones. The others go to
oneDNN, which works on copies: in blocks of as many channels as fit a vector register, padded to
whole blocks, or with the channels last.

The stages of each kernel are those that the profiler's allocation records show for PyTorch 2.13 on
AVX2; what oneDNN chooses on AVX-512 differs in details, not in kind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ranp.resources.machine import vector_width

_UNFOLDING = ("Slow2d", "Slow3d")
_DILATED = ("SlowDilated2d", "SlowDilated3d")
_FOLDING = ("SlowTranspose2d", "SlowTranspose3d")
# PyTorch has no name in Python for its oneDNN kernel of transposed convolutions.
_ONEDNN, _ONEDNN_TRANSPOSED = "Mkldnn", "???"


@dataclass(frozen=True)
class _Convolution:
    """One convolution: everything that its kernels' memory depends on."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    y: tuple[int, ...]
    item: int
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int

    @cached_property
    def kernel(self) -> int:
        return math.prod(self.weight[2:])

    @property
    def is_pointwise(self) -> bool:
        return self.kernel == 1 and max(self.stride) == 1 and max(self.padding) == 0

    @property
    def is_depthwise(self) -> bool:
        return self.groups == self.x[1] > 1

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * self.item

    def blocked(self, shape: tuple[int, ...]) -> int:
        """Return bytes with the channels in whole blocks."""
        batch, channels, *space = shape
        return math.prod((batch, _whole_blocks(channels), *space)) * self.item

    @property
    def blocked_weight(self) -> int:
        outputs, inputs, *space = self.weight
        return _whole_blocks(outputs) * _whole_blocks(inputs) * math.prod(space) * self.item

    def columns(self, batch: int) -> int:
        """Return bytes of the unfolded input of several samples."""
        return batch * self.x[1] * self.kernel * math.prod(self.y[2:]) * self.item


def convolution_workspace(func: Any, args: tuple[Any, ...], out: Any) -> int:
    """Return the most bytes that a convolution holds at one time besides its inputs and outputs.

    Args:
        func: Any ATen operation; one that is no convolution takes nothing.
        args: Its arguments, tensors without content will do.
        out: Its outputs.
    """
    if func is torch.ops.aten.convolution.default:
        x, weight, _, *options = args
        backend = torch._C._select_conv_backend(x, weight, None, *options).name
        return _forward(_describe(x, weight, out, options), backend)
    if func is torch.ops.aten.convolution_backward.default:
        grad, x, weight, _, *options, wanted = args
        backend = torch._C._select_conv_backend(x, weight, None, *options).name
        return _backward(_describe(x, weight, grad, options), backend, wanted)
    return 0


def _describe(x: Tensor, weight: Tensor, y: Tensor, options: list[Any]) -> _Convolution:
    stride, padding, *_, groups = options
    return _Convolution(
        tuple(x.shape),
        tuple(weight.shape),
        tuple(y.shape),
        x.element_size(),
        tuple(stride),
        tuple(padding),
        groups,
    )


def _forward(c: _Convolution, backend: str) -> int:
    x, y, weight = c.bytes_of(c.x), c.bytes_of(c.y), c.bytes_of(c.weight)
    if backend in _UNFOLDING:
        return 0 if c.is_pointwise else c.columns(batch=c.x[0])
    if backend in _DILATED:
        return c.columns(batch=1)
    if backend in _FOLDING:
        return _folded(c)
    if backend == _ONEDNN_TRANSPOSED:
        return max(x + weight, 2 * y)
    if backend != _ONEDNN:
        return 0
    if c.is_depthwise and len(c.x) == 5:  # channels last, and the output twice more on its way back
        return max(x + weight, 2 * y)
    blocked = c.blocked(c.y)
    return max(_entering(c) + c.blocked_weight + blocked - y, blocked)


def _backward(c: _Convolution, backend: str, wanted: list[bool]) -> int:
    """Return the larger of two stages: the gradient of the input, then that of the weight."""
    x, y, weight = c.bytes_of(c.x), c.bytes_of(c.y), c.bytes_of(c.weight)
    by_input = by_weight = 0
    if backend in _UNFOLDING:
        columns = c.columns(batch=c.x[0] if backend == "Slow3d" else 1)
        by_input = columns if backend == "Slow3d" or not c.is_pointwise else 0
        by_weight = 0 if c.is_pointwise else columns
    elif backend in _DILATED:
        by_input = by_weight = c.columns(batch=1)
    elif backend in _FOLDING:
        by_input = by_weight = _folded(c)
    elif backend == _ONEDNN_TRANSPOSED:
        by_input, by_weight = max(y + weight, x), y + x
    elif backend == _ONEDNN:
        if c.is_depthwise:
            by_input = x
        elif max(c.stride) > 1:  # channels last, and the gradient twice more on its way back
            by_input = max(y + weight, 2 * x)
        else:
            blocked = c.blocked(c.x)
            by_input = max(c.blocked(c.y) + c.blocked_weight + blocked - x, blocked)
        by_weight = _weight_gradient(c)
    # The gradient of the weight, counted as an output, is not there before that of the input is.
    return max(wanted[0] * (by_input - wanted[1] * weight), wanted[1] * by_weight, 0)


def _entering(c: _Convolution) -> int:
    """Return the size of the copy of an input; one of less than a block is not copied."""
    return c.blocked(c.x) if c.x[1] >= vector_width() else 0


def _weight_gradient(c: _Convolution) -> int:
    """Return what a product over an unfolded slice of depth takes, or blocked copies.

    For the former oneDNN asks for four times the weights besides, but touches only what threads
    that take samples of their own sum up in: what is not touched takes no memory.
    """
    weight = c.bytes_of(c.weight)
    if len(c.x) == 5 and max(c.padding) > 0 and vector_width() == 8:
        threads = torch.get_num_threads()
        slice_of_columns = c.x[1] // c.groups * c.kernel * math.prod(c.y[3:]) * c.item
        return max(threads * slice_of_columns + (min(threads, c.x[0]) - 1) * weight, weight)
    return c.blocked(c.y) + _entering(c) + c.blocked_weight - weight


def _folded(c: _Convolution) -> int:
    """Return the columns of a transposed convolution, one for every voxel of a sample."""
    return c.weight[1] * c.kernel * math.prod(c.x[2:]) * c.item


def _whole_blocks(channels: int) -> int:
    return -(-channels // vector_width()) * vector_width()
