"""Workspace of other kernels than convolutions: memory beside inputs and outputs, while they run.

On a CPU, arithmetic between different dtypes copies what must be promoted; CUDA promotes on the
fly. Losses of PyTorch that reduce make a value for every element first, on both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ranp.resources.convolution_workspace import convolution_workspace

_PROMOTING = frozenset(
    f"aten::{name}{in_place}"
    for name in (
        *("add", "sub", "rsub", "mul", "div", "pow", "fmod", "remainder", "atan2"),
        *("maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"),
    )
    for in_place in ("", "_")
)
# The position of the argument `reduction` of those that reduce.
_REDUCING = {
    "aten::mse_loss": 2,
    "aten::smooth_l1_loss": 2,
    "aten::huber_loss": 2,
    "aten::soft_margin_loss": 2,
    "aten::binary_cross_entropy": 3,
}
# Their scalar is what is left of a tensor of all elements, and keeps that one's storage.
_KEEPING = ("aten::mse_loss", "aten::smooth_l1_loss")
_NO_REDUCTION, _MEAN = 0, 1
CUDA_BLOCK = 512  # CUDA's caching allocator hands out multiples of it, in bytes
_CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")


@dataclass(frozen=True)
class Workspace:
    """What operations on a device hold beside inputs and outputs.

    Attributes:
        operations: Names of the operations that may hold something.
        bytes_of: `bytes_of(operation, args, outputs)` -> the most bytes that it holds.
        block: Bytes that sizes of tensors are rounded up to multiples of.
    """

    operations: frozenset[str]
    bytes_of: Callable[[Any, tuple[Any, ...], Any], int]
    block: int


def kept_by_output(func: Any, args: Sequence[Any]) -> int:
    """Return the bytes of the storage of an output that is larger than its shape says; 0 if not."""
    return _elements_reduced(func, args, None) if func._schema.name in _KEEPING else 0


def _elements_reduced(func: Any, args: Sequence[Any], out: Any) -> int:
    """Return the bytes of a value for every element that a loss reduces."""
    at = _REDUCING.get(func._schema.name)
    if at is None or (args[at] if at < len(args) else _MEAN) == _NO_REDUCTION:
        return 0
    elements: int = math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape))
    return elements * int(args[0].element_size())


def _on_cpu(func: Any, args: Sequence[Any], out: Any) -> int:
    if func._schema.name in _PROMOTING:
        return _promoted(args[0], args[1])
    return convolution_workspace(func, tuple(args), out) or _elements_reduced(func, args, out)


def _promoted(a: Any, b: Any) -> int:
    """The bytes of copies in the dtype that two operands have in common."""
    tensors = [t for t in (a, b) if isinstance(t, Tensor)]
    if len({t.dtype for t in tensors}) == 1 and len(tensors) == 2:
        return 0
    common = torch.result_type(a, b)
    return sum(t.numel() * common.itemsize for t in tensors if t.dtype != common and t.dim() > 0)


WORKSPACES = {
    "cpu": Workspace(_PROMOTING.union(_REDUCING, _CONVOLUTIONS), _on_cpu, 1),
    "cuda": Workspace(frozenset(_REDUCING), _elements_reduced, CUDA_BLOCK),
}
"""By device."""
