"""Outputs of operations that are known from their inputs, without running them.

On fake tensors a normalization is run as the dozen of operations that it is made of, and so is its
gradient; a convolution asks which kernel would run; and all that anew for every shape. In a network
whose layers all have other widths, as slim ones do, that is most of the time of a trace, and of a
simulated training step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ranp.graph.fake_tensors import fake_empty, fake_empty_like
from ranp.graph.operation import operands


def known_output(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the output of an ATen operation if its shape follows from the inputs, else None.

    What is out of the ordinary is left to the operation, which knows what to say: weights of
    another width, groups that do not divide the channels, other dtypes and memory formats.
    """
    x = args[0] if args else None
    if not isinstance(x, FakeTensor) or kwargs or x.constant is not None:
        return None
    name = func._schema.name
    if name.endswith("_") and name[:-1] in _ELEMENTWISE:
        return x
    if name in _ELEMENTWISE:
        return fake_empty_like(x) if _is_plain(x) else None
    rule = _RULES.get(name)
    if rule is None or not _is_plain(x):
        return None
    device = x.fake_device
    together = all(isinstance(t, FakeTensor) and t.fake_device == device for t in operands(args))
    return rule(*args) if together else None


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


def _empty(x: FakeTensor, shape: Sequence[int]) -> FakeTensor:
    return fake_empty(x.fake_mode, shape, x.dtype, x.fake_device)


def _channel_norm(x: FakeTensor, *others: Any) -> Any:
    """Return the output of a batch, instance or group norm, as a forward calls them."""
    tensors = [other for other in others if isinstance(other, Tensor)]
    groups = others[0] if isinstance(others[0], int) else 1
    fits = (
        x.dim() > 1
        and x.shape[1] % groups == 0
        and _fit(x.shape[1:2], *tensors)
        and all(tensor.dtype == x.dtype for tensor in tensors)
    )
    return fake_empty_like(x) if fits else None


def _convolution(
    x: FakeTensor,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor | None:
    """Return the output of a (transposed) convolution of a batch."""
    kernel = weight.shape[2:]
    settings = (stride, padding, dilation, output_padding)
    if x.dim() != weight.dim() or any(len(each) != len(kernel) for each in settings):
        return None
    # Weights are (out, in / groups, ...), those of transposed convolutions (in, out / groups, ...).
    rows, columns = weight.shape[:2]
    reads, gives = (rows, columns * groups) if transposed else (columns * groups, rows)
    tensors = [x, weight] if bias is None else [x, weight, bias]
    fits = (
        x.shape[1] == reads
        and rows % groups == 0
        and (bias is None or bias.shape == (gives,))
        and all(_is_row_major(t) and t.dtype == x.dtype for t in tensors)
        and min(*stride, *dilation) > 0 <= min(*padding, *output_padding)
        and all(o < max(s, d) for s, _, d, o in zip(*settings, strict=True))
    )
    if not fits:
        return None
    sizes = [
        (size - 1) * s - 2 * p + d * (k - 1) + 1 + o
        if transposed
        else (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d, o in zip(x.shape[2:], kernel, *settings, strict=True)
    ]
    return _empty(x, (x.shape[0], gives, *sizes)) if min(sizes) > 0 else None


def _is_row_major(tensor: FakeTensor) -> bool:
    """Return whether a tensor is contiguous, and of no other memory format by chance."""
    strides = accumulate(reversed(tensor.shape[1:]), lambda a, b: a * b, initial=1)
    return tensor.stride() == tuple(strides)[::-1]


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
    return fake_empty_like(x), _empty(x, shape), _empty(x, shape)


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


def _repeat(x: FakeTensor, times: Sequence[int]) -> Any:
    if len(times) != x.dim() or math.prod(times) < 1:
        return None
    return _empty(x, [size * number for size, number in zip(x.shape, times, strict=True)])


def _arithmetic(x: FakeTensor, other: Any) -> Any:
    is_number = isinstance(other, (int, float))
    fits = _is_row_major(x) and (is_number or (_is_like(other, x) and _is_row_major(other)))
    return fake_empty_like(x) if fits else None


def _pad(x: FakeTensor, padding: Sequence[int], *_: Any) -> Any:
    pairs = [*zip(padding[::2], padding[1::2], strict=True)][::-1]  # the last dimension comes first
    kept = x.dim() - len(pairs)
    if kept < 0 or min(padding, default=-1) < 0 or not _is_row_major(x):
        return None
    sizes = [size + sum(pair) for size, pair in zip(x.shape[kept:], pairs, strict=True)]
    return _empty(x, (*x.shape[:kept], *sizes))


def _add_product(x: FakeTensor, left: Any, right: Any) -> Any:
    shape = (left.shape[0], right.shape[1])
    fits = left.shape[1] == right.shape[0] and tuple(x.shape) == shape[1:]
    return _empty(x, shape) if fits and left.dtype == right.dtype == x.dtype else None


_ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in (
        *("relu", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "hardtanh"),
        *("hardswish", "sigmoid", "tanh", "dropout", "feature_dropout", "alpha_dropout"),
    )
)
_ACTIVATION_GRADIENTS = (
    *("threshold", "leaky_relu", "elu", "gelu", "silu", "mish", "hardtanh", "hardswish"),
    *("sigmoid", "tanh", "softplus"),
)
_RULES: dict[str, Callable[..., Any]] = {
    **{f"aten::{name}": _arithmetic for name in ("add", "sub", "mul", "div")},
    "aten::constant_pad_nd": _pad,
    **{
        f"aten::{name}_backward": lambda g, x, *_: fake_empty_like(g) if _is_like(x, g) else None
        for name in _ACTIVATION_GRADIENTS
    },
    "aten::convolution": _convolution,
    "aten::batch_norm": _channel_norm,
    "aten::instance_norm": _channel_norm,
    "aten::group_norm": _channel_norm,
    "aten::native_batch_norm": _batch_norm,
    "aten::native_batch_norm_backward": _batch_norm_backward,
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::slice_backward": lambda grad, shape, *_: _empty(grad, shape),
    "aten::select_backward": lambda grad, shape, *_: _empty(grad, shape),
    "aten::copy_": lambda x, source, *_: x if _is_like(source, x) else None,
    "aten::repeat": _repeat,
    "aten::addmm": _add_product,
}
