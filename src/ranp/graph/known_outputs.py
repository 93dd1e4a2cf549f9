"""Outputs of the operations that networks are made of, known from their inputs without running.

On fake tensors a normalization is run as the dozen of operations that it is made of, a convolution
asks which kernel would run, and both anew for every shape: in a network whose layers all have other
widths that is most of the time of a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ranp.graph.fake_tensors import fake_empty, fake_empty_like

_ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in (
        *("relu", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "hardtanh"),
        *("hardswish", "sigmoid", "tanh", "dropout", "feature_dropout", "alpha_dropout"),
    )
)
_BY_CHANNEL = frozenset({"aten::batch_norm", "aten::instance_norm", "aten::group_norm"})


def known_output(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the output of an operation whose shape is known from its inputs, else None.

    What does not fit (weights of another width, groups that do not divide the channels) is left
    to the operation, which knows what to say; so are other memory formats.

    Args:
        name: The name of the operation.
        args: Its arguments by position.
        kwargs: Its arguments by name.
    """
    x = args[0] if args else None
    if not isinstance(x, FakeTensor) or kwargs or x.constant is not None:
        return None
    if name == "aten::convolution":
        return _convolution(*args)
    if name.endswith("_") and name[:-1] in _ELEMENTWISE:
        return x
    is_known = name in _ELEMENTWISE or (name in _BY_CHANNEL and _fits(x, args[1:]))
    if is_known and x.is_floating_point() and x.is_contiguous():
        return fake_empty_like(x)
    return None


def _fits(x: Tensor, others: tuple[Any, ...]) -> bool:
    """Return whether the weights, statistics and groups of a normalization fit its input."""
    if x.dim() < 2:
        return False
    tensors = [other for other in others if isinstance(other, Tensor)]
    groups = others[0] if isinstance(others[0], int) else 1
    return x.shape[1] % groups == 0 and all(
        isinstance(t, FakeTensor) and t.shape == x.shape[1:2] and t.dtype == x.dtype
        for t in tensors
    )


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
        and all(t.fake_device == x.fake_device for t in tensors)
        and x.is_floating_point()
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
    if min(sizes) < 1:
        return None
    return fake_empty(x.fake_mode, (x.shape[0], gives, *sizes), x.dtype, x.fake_device)


def _is_row_major(tensor: Any) -> bool:
    """Return whether a fake tensor is contiguous, and of no other memory format by chance."""
    if not isinstance(tensor, FakeTensor):
        return False
    strides = accumulate(reversed(tensor.shape[1:]), lambda a, b: a * b, initial=1)
    return tensor.stride() == tuple(strides)[::-1]
