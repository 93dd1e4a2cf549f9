"""Functions that networks call by name, computed faster in channels-last layout.

Convolutions and norms are modules that can be told how to compute. Upsampling and pooling are
often called as functions; while a network runs, PyTorch hands such calls to a mode, and that to
what is here. Calls of another kind go on to PyTorch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ranp.speed.layout import is_channels_last

Factors = tuple[int, ...]


class FastFunctions(TorchFunctionMode):
    """While it is on, some functions take another way to the same result."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the replacement of a function if there is one, and it fits."""
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(func)
        result = None if replacement is None else replacement(*args, **kwargs)
        return func(*args, **kwargs) if result is None else result


class _Running(threading.local):
    """The modes of the networks that run in this thread, the innermost last."""

    def __init__(self) -> None:
        self.stacks: list[ExitStack] = []


_running = _Running()


def set_fast_functions(model: nn.Module) -> None:
    """Turn the mode on whenever this network runs."""
    if _enter not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_enter)
        model.register_forward_hook(_leave, always_call=True)


def _enter(model: nn.Module, args: Any) -> None:
    if not torch.compiler.is_compiling():
        stack = ExitStack()
        stack.enter_context(FastFunctions())
        _running.stacks.append(stack)


def _leave(model: nn.Module, args: Any, output: Any) -> None:
    if not torch.compiler.is_compiling() and _running.stacks:
        _running.stacks.pop().close()


def _interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", **more: Any
) -> Tensor | None:
    if (
        mode != "nearest"
        or any(more.values())
        or not is_channels_last(input)
        or not _needs_gradient(input)
    ):
        return None
    factors = _factors(input, size, scale_factor)
    if factors is None:
        return None
    out: Tensor = _Nearest.apply(input, factors)  # type: ignore[no-untyped-call]
    return out


def _factors(x: Tensor, size: Any, scale_factor: Any) -> Factors | None:
    """By what whole numbers each dimension grows; None if it is not by whole numbers."""
    if (size is None) == (scale_factor is None):
        return None  # PyTorch says what is wrong
    given = _three(scale_factor if size is None else size)
    if len(given) != 3:
        return None
    before = (1, 1, 1) if size is None else x.shape[2:]
    scales = [new / old for new, old in zip(given, before, strict=True)]
    return tuple(map(int, scales)) if all(s >= 1 and s == int(s) for s in scales) else None


class _Nearest(torch.autograd.Function):
    """Upsampling by repetition; its gradient is the sum over all that a voxel was repeated to.

    PyTorch copies the gradient to the standard layout first, element by element.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Factors) -> Tensor:
        ctx.factors = factors
        return F.interpolate(x, scale_factor=[float(factor) for factor in factors], mode="nearest")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _windows(grad, ctx.factors, torch.add), None


def _max_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    kernel = _three(kernel_size)
    steps = kernel if stride is None else _three(stride)
    is_simple = kernel == steps and _three(padding) == (0, 0, 0) and _three(dilation) == (1, 1, 1)
    if not is_simple or ceil_mode or return_indices or len(kernel) != 3 or max(kernel) == 1:
        return None
    if not is_channels_last(input) or _needs_gradient(input) or min(input.shape[2:]) < max(kernel):
        return None
    return _windows(input, kernel, torch.maximum)


def _windows(x: Tensor, sizes: Factors, join: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Join the voxels of each window, dimension by dimension.

    The outermost comes first: what is joined there lies in long rows, and after it there is less.
    """
    x = x.permute(0, 2, 3, 4, 1)
    for dim, size in enumerate(sizes, start=1):
        whole = x.narrow(dim, 0, x.shape[dim] // size * size)
        before = (slice(None),) * dim
        joined = whole[(*before, slice(0, None, size))]
        for i in range(1, size):
            joined = join(joined, whole[(*before, slice(i, None, size))])
        x = joined
    return x.permute(0, 4, 1, 2, 3)


def _three(value: Any) -> tuple[Any, ...]:
    return (value,) * 3 if isinstance(value, Real) else tuple(value)


def _needs_gradient(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


_REPLACEMENTS: dict[Any, Callable[..., Tensor | None]] = {
    F.interpolate: _interpolate,
    F.max_pool3d: _max_pool3d,
}
