"""Workspace of PyTorch's convolutions on a CPU: memory beside inputs and outputs, while they run.

Which kernel runs is PyTorch's own choice and asked of it. Its native kernels unfold the input:
every voxel of the output gets a column of input channels x kernel volume. Thin 3D convolutions at
batch 1 go there (N x C x D x H <= 20480), and on a single thread pointwise ones. The others go to
oneDNN, which works on copies: in blocks of as many channels as fit a vector register, padded to
whole blocks, or with the channels last. Where it has no such kernel, it unfolds a slice of depth.

The stages of each kernel are those that the profiler's allocation records show for PyTorch 2.13
with oneDNN's kernels for AVX-512, AVX2 and SSE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ranp.resources.machine import onednn_kernels, vector_width

_UNFOLDING = ("Slow2d", "Slow3d")
_DILATED = ("SlowDilated2d", "SlowDilated3d")
_FOLDING = ("SlowTranspose2d", "SlowTranspose3d")
# PyTorch has no name in Python for its oneDNN kernel of transposed convolutions.
_ONEDNN, _ONEDNN_TRANSPOSED = "Mkldnn", "???"
_FLOAT = 4  # bytes
_IMAGE_CHANNELS = 3
_TABLES = 8640  # bytes that oneDNN's weight gradient of half precision keeps for itself


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
        """Return bytes of the weight with inputs and outputs in whole blocks."""
        outputs, inputs, *_ = self.weight
        if self.groups > 1:
            return self.bytes_of(self.weight)
        return _whole_blocks(outputs) * _whole_blocks(inputs) * self.kernel * self.item

    @property
    def entering(self) -> int:
        """Return bytes of the copy of the input; one of less than a block is not copied."""
        return self.blocked(self.x) if self.x[1] >= vector_width() else 0

    @property
    def entering_weight(self) -> int:
        """Return bytes of the weight's copy for an input that may not be copied."""
        outputs, inputs, *_ = self.weight
        if self.groups > 1 or self.entering:
            return self.blocked_weight
        return _whole_blocks(outputs) * inputs * self.kernel * self.item

    def columns(self, batch: int) -> int:
        """Return bytes of the unfolded input of several samples."""
        return batch * self.x[1] * self.kernel * math.prod(self.y[2:]) * self.item

    @property
    def slice_of_columns(self) -> int:
        """Return bytes of the unfolded input of one group, for a single slice of depth."""
        return self.x[1] // self.groups * self.kernel * _plane(self.y) * self.item

    @property
    def slice_of_folded_columns(self) -> int:
        """Return the same of a transposed convolution, whose output is unfolded."""
        return self.weight[1] * self.kernel * _plane(self.x) * self.item


def convolution_workspace(func: Any, args: tuple[Any, ...], out: Any) -> int:
    """Return the peak workspace of a convolution in bytes: what it holds beside inputs and outputs.

    It is 0 for any other ATen operation. Tensors without content will do.
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
    has_vector_kernels = onednn_kernels() != "SSE"
    if backend == _ONEDNN_TRANSPOSED:
        return max(x + weight, 2 * y) if has_vector_kernels else y + c.slice_of_folded_columns
    if backend != _ONEDNN:
        return 0
    if len(c.x) == 5 and not has_vector_kernels:
        return max(torch.get_num_threads() * c.slice_of_columns, y)
    if c.is_depthwise and len(c.x) == 5:  # channels last, and the output twice more on its way back
        return max(x + weight, 2 * y)
    blocked = c.blocked(c.y)
    if c.item < _FLOAT and c.is_pointwise:  # sums in more digits are kept apart
        return c.blocked(c.x) + c.blocked_weight + 2 * blocked - y
    return max(c.entering + c.entering_weight + blocked - y, blocked)


def _backward(c: _Convolution, backend: str, wanted: list[bool]) -> int:
    """Return the larger of two stages: the gradient of the input, then that of the weight."""
    x, y, weight = c.bytes_of(c.x), c.bytes_of(c.y), c.bytes_of(c.weight)
    by_input = by_weight = 0
    has_vector_kernels = onednn_kernels() != "SSE"
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
        if not has_vector_kernels:
            by_input, by_weight = max(c.slice_of_folded_columns, x), c.slice_of_folded_columns
    elif backend == _ONEDNN:
        if not has_vector_kernels:
            by_input = max(torch.get_num_threads() * c.slice_of_columns, x)
        elif c.is_depthwise:
            by_input = x
        elif max(c.stride) > 1:  # channels last, and the gradient twice more on its way back
            by_input = max(y + weight, 2 * x)
        else:
            blocked = c.blocked(c.x)
            by_input = max(c.blocked(c.y) + c.blocked_weight + blocked - x, blocked)
        by_weight = _weight_gradient(c)
    # The gradient of the weight, counted as an output, is not there before that of the input is.
    return max(wanted[0] * (by_input - wanted[1] * weight), wanted[1] * by_weight, 0)


def _weight_gradient(c: _Convolution) -> int:
    """Return what a product over an unfolded slice of depth takes, or blocked copies.

    For the former oneDNN asks for four times the weights as well, but touches only what threads
    that take samples of their own sum up in: what is not touched takes no memory.
    """
    weight = c.bytes_of(c.weight)
    if not _is_weight_gradient_blocked(c):
        threads = torch.get_num_threads()
        return max(threads * c.slice_of_columns + (min(threads, c.x[0]) - 1) * weight, weight)
    taken = c.blocked(c.y) + c.entering + c.entering_weight - weight
    if c.item < _FLOAT and vector_width() == 16:
        # Copies of a sample with the rows transposed, and sums in float32.
        _, _, *space, width = c.x
        row = width + 2 * c.padding[-1]
        transposed = _whole_blocks(c.x[1]) * math.prod(space) * row
        transposed += _whole_blocks(c.y[1]) * math.prod(c.y[2:])
        taken += transposed * c.item + c.blocked_weight // c.item * _FLOAT + _TABLES
    return taken


def _is_weight_gradient_blocked(c: _Convolution) -> bool:
    """Return whether the gradient of a weight needs nothing unfolded."""
    inputs = c.x[1] // c.groups
    if onednn_kernels() == "SSE":
        return False
    if len(c.x) != 5:
        return True
    if vector_width() == 8:
        return max(c.padding) == 0
    # The kernel for wide registers takes whole blocks of inputs, or those of an image.
    is_image = c.groups == 1 and c.item == _FLOAT and inputs <= _IMAGE_CHANNELS
    return max(c.padding) == 0 or inputs >= vector_width() or is_image


def _folded(c: _Convolution) -> int:
    """Return the columns of a transposed convolution, one for every voxel of a sample."""
    return c.weight[1] * c.kernel * math.prod(c.x[2:]) * c.item


def _plane(shape: tuple[int, ...]) -> int:
    """Return the number of places of an image, or of a volume's slice of depth."""
    return math.prod(shape[max(2, len(shape) - 2) :])


def _whole_blocks(channels: int) -> int:
    return -(-channels // vector_width()) * vector_width()
