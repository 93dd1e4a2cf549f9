"""Operations of a training step whose outputs are known from their inputs, without running them.

Fake tensors run a normalization as the dozen of operations that it is made of, anew for every
shape, and its gradient too. In a network whose layers all have other widths, as slim ones do, that
is most of the time of a step (see also `ranp.graph.known_outputs`, for what a forward alone calls).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from ranp.graph.fake_tensors import fake_empty, fake_empty_like
from ranp.graph.known_outputs import known_output

_GRADIENTS = frozenset(
    f"aten::{name}_backward"
    for name in (
        *("threshold", "leaky_relu", "elu", "gelu", "silu", "mish", "hardtanh", "hardswish"),
        *("sigmoid", "tanh", "softplus"),
    )
)


def known_outputs(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the output of an operation if its shape follows from the inputs, else None.

    What is out of the ordinary (other dtypes, strides, arguments that do not fit) is left to the
    operation.

    Args:
        func: An ATen operation, as it is called below autograd.
        args: Its arguments by position.
        kwargs: Its arguments by name.
    """
    name = func._schema.name
    if kwargs or not args or not _is_plain(args[0]):
        return None
    if name in _GRADIENTS:
        grad, x = args[:2]
        return fake_empty_like(grad) if _is_like(x, grad) else None
    rule = _RULES.get(name)
    return known_output(name, args, kwargs) if rule is None else rule(*args)


def _is_plain(tensor: Any) -> bool:
    return (
        isinstance(tensor, FakeTensor)
        and tensor.constant is None
        and tensor.is_floating_point()
        and tensor.is_contiguous()
    )


def _is_like(tensor: Any, other: FakeTensor) -> bool:
    return _is_plain(tensor) and tensor.shape == other.shape and tensor.dtype == other.dtype


def _fit(shape: Sequence[int], *others: Any) -> bool:
    """Return whether weights and statistics are of a shape, or missing."""
    tensors = [other for other in others if other is not None]
    return all(_is_plain(tensor) and tuple(tensor.shape) == tuple(shape) for tensor in tensors)


def _batch_norm(
    x: FakeTensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *_: Any
) -> Any:
    if x.dim() < 2 or not training or not _fit(x.shape[1:2], weight, bias, mean, variance):
        return None
    return _with_statistics(x, x.shape[1:2])


def _layer_norm(x: FakeTensor, shape: Sequence[int], weight: Any, bias: Any, *_: Any) -> Any:
    kept = x.dim() - len(shape)
    if kept < 0 or tuple(x.shape[kept:]) != tuple(shape) or not _fit(shape, weight, bias):
        return None
    return _with_statistics(x, (*x.shape[:kept], *[1] * len(shape)))


def _with_statistics(x: FakeTensor, shape: Sequence[int]) -> tuple[FakeTensor, ...]:
    statistics = (fake_empty(x.fake_mode, shape, x.dtype) for _ in range(2))
    return fake_empty_like(x), *statistics


def _batch_norm_backward(grad: FakeTensor, x: Any, weight: Any, *rest: Any) -> Any:
    *_, training, _, wanted = rest
    fits = _is_like(x, grad) and x.dim() > 1 and _fit(x.shape[1:2], weight)
    return _norm_gradients(x, weight, wanted) if training and fits else None


def _layer_norm_backward(
    grad: FakeTensor, x: Any, shape: Sequence[int], *statistics_and_weights: Any
) -> Any:
    _, _, weight, bias, wanted = statistics_and_weights
    fits = _is_like(x, grad) and _fit(shape, weight, bias) and (weight is None) == (bias is None)
    return _norm_gradients(x, weight, wanted) if fits else None


def _norm_gradients(x: FakeTensor, weight: Any, wanted: Sequence[bool]) -> Any:
    """Return the gradients of an input, a weight and a bias like it."""
    if not wanted[0] or list(wanted[1:]) != [weight is not None] * 2:
        return None
    if weight is None:
        return fake_empty_like(x), None, None
    return fake_empty_like(x), fake_empty_like(weight), fake_empty_like(weight)


def _zeros_around(grad: FakeTensor, shape: Sequence[int], *_: Any) -> Any:
    return fake_empty(grad.fake_mode, shape, grad.dtype)


def _copy_into(x: FakeTensor, source: Any, *_: Any) -> Any:
    return x if _is_like(source, x) else None


def _repeat(x: FakeTensor, times: Sequence[int]) -> Any:
    if len(times) != x.dim() or math.prod(times) < 1:
        return None
    shape = [size * number for size, number in zip(x.shape, times, strict=True)]
    return fake_empty(x.fake_mode, shape, x.dtype)


def _add_product(x: FakeTensor, left: Any, right: Any) -> Any:
    factors = (left, right)
    if not all(isinstance(t, FakeTensor) and t.dtype == x.dtype for t in factors):
        return None
    shape = (left.shape[0], right.shape[1])
    fits = left.shape[1] == right.shape[0] and tuple(x.shape) == shape[1:]
    return fake_empty(x.fake_mode, shape, x.dtype) if fits else None


_RULES: dict[str, Callable[..., Any]] = {
    "aten::native_batch_norm": _batch_norm,
    "aten::native_batch_norm_backward": _batch_norm_backward,
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::slice_backward": _zeros_around,
    "aten::select_backward": _zeros_around,
    "aten::copy_": _copy_into,
    "aten::repeat": _repeat,
    "aten::addmm": _add_product,
}
