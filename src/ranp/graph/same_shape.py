"""Outputs of operations that keep the shape of their input, computed without running them.

On fake tensors a normalization runs as a dozen operations, again for every shape; in a network
whose layers all differ in width that is most of the time of a trace.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ranp.graph.fake_tensors import fake_empty_like

_ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in (
        *("relu", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "hardtanh"),
        *("hardswish", "sigmoid", "tanh", "dropout", "feature_dropout", "alpha_dropout"),
    )
)
_BY_CHANNEL = frozenset({"aten::batch_norm", "aten::instance_norm", "aten::group_norm"})


def output_like_input(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the output of an operation whose shape is known from its input, else None.

    What does not fit (weights of another width, groups that do not divide the channels) is left
    to the operation, which knows what to say.

    Args:
        name: The name of the operation.
        args: Its arguments by position.
        kwargs: Its arguments by name.
    """
    x = args[0] if args else None
    if not isinstance(x, FakeTensor) or kwargs or x.constant is not None:
        return None
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
