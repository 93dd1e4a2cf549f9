"""Operations of a training step whose outputs are known from their inputs, without running them.

Fake tensors run a normalization as the dozen of operations that it is made of, anew for every
shape, and its gradient too. In a network whose layers all have other widths, as slim ones do, that
is most of the time of a step (see also `ranp.graph.same_shape`, for what a forward alone calls).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from ranp.graph.fake_tensors import fake_empty, fake_empty_like

_GRADIENTS = frozenset(
    f"aten::{name}_backward"
    for name in (
        *("threshold", "leaky_relu", "elu", "gelu", "silu", "mish", "hardtanh", "hardswish"),
        *("sigmoid", "tanh", "softplus"),
    )
)


def known_outputs(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return what an operation gives out if that is known from its inputs, else None.

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
        alike = _is_plain(x) and x.shape == grad.shape and x.dtype == grad.dtype
        return fake_empty_like(grad) if alike else None
    rule = _RULES.get(name)
    return None if rule is None else rule(*args)


def _is_plain(tensor: Any) -> bool:
    return (
        isinstance(tensor, FakeTensor)
        and tensor.constant is None
        and tensor.is_floating_point()
        and tensor.is_contiguous()
    )


def _fit(x: FakeTensor, *others: Any) -> bool:
    """Return whether weights and statistics are there, one for every channel, or missing."""
    tensors = [other for other in others if other is not None]
    return x.dim() > 1 and all(
        isinstance(t, FakeTensor) and t.shape == x.shape[1:2] and t.dtype == x.dtype
        for t in tensors
    )


def _batch_norm(
    x: FakeTensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *_: Any
) -> Any:
    if weight is None or not training or not _fit(x, weight, bias, mean, variance):
        return None
    saved = (fake_empty(x.fake_mode, x.shape[1:2], x.dtype) for _ in range(2))
    return fake_empty_like(x), *saved


def _batch_norm_backward(grad: FakeTensor, x: Any, weight: Any, *rest: Any) -> Any:
    *_, training, _, wanted = rest
    fits = _is_plain(x) and x.shape == grad.shape and x.dtype == grad.dtype
    if weight is None or not training or not all(wanted) or not fits or not _fit(x, weight):
        return None
    return fake_empty_like(x), fake_empty_like(weight), fake_empty_like(weight)


_RULES: dict[str, Callable[..., Any]] = {
    "aten::native_batch_norm": _batch_norm,
    "aten::native_batch_norm_backward": _batch_norm_backward,
}
