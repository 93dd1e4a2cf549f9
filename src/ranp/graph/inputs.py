"""What a model is called with, kept as shapes only: nothing is allocated at any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ranp.errors import UsageError

ExampleInput = Tensor | Sequence[int] | Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class TensorShape:
    """A tensor without its data."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> TensorShape:
        """Return the description of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.device)

    def materialize(self) -> Tensor:
        """Return a tensor like it; inside a fake tensor mode it takes no memory."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class Inputs:
    """The arguments of a model's forward, with `TensorShape` in place of tensors."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def materialize(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as tensors; inside a fake tensor mode they take no memory."""
        described = (self.args, self.kwargs)
        args, kwargs = pytree.tree_map_only(TensorShape, TensorShape.materialize, described)
        return args, kwargs

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of all tensors, in order."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return tuple(leaf.shape for leaf in leaves if isinstance(leaf, TensorShape))


def describe_inputs(model: nn.Module, example: ExampleInput) -> Inputs:
    """Turn an example input into its description.

    Args:
        model: The model it is for: a bare shape takes the device and dtype of its parameters.
        example: A tensor; a shape (a sequence of whole numbers); a sequence of positional
            arguments; or a mapping of keyword arguments.
    """
    if isinstance(example, Mapping):
        return Inputs((), {name: _describe(value) for name, value in example.items()})
    if isinstance(example, Tensor):
        return Inputs((_describe(example),), {})
    if isinstance(example, Sequence) and not isinstance(example, str) and example:
        if all(isinstance(size, int) for size in example):
            return Inputs((_shape_like(model, [int(size) for size in example]),), {})
        return Inputs(tuple(_describe(value) for value in example), {})
    raise UsageError(
        f"the example input must be a tensor, a shape, a sequence of positional or a mapping of "
        f"keyword arguments, not {type(example).__name__}"
    )


def describe_shape(shape: Sequence[int]) -> str:
    """Format a shape as the command line takes it."""
    return ",".join(map(str, shape))


def _describe(value: Any) -> Any:
    def describe(x: Tensor) -> TensorShape:
        if x.layout is not torch.strided:
            raise UsageError(f"example input must be dense, got {x.layout}; give x.to_dense()")
        return TensorShape.of(x)

    return pytree.tree_map_only(Tensor, describe, value)


def _shape_like(model: nn.Module, shape: list[int]) -> TensorShape:
    if min(shape) < 1:
        raise UsageError(f"input shape {tuple(shape)} has a size below 1")
    for tensor in model.parameters():
        if tensor.is_floating_point():
            return TensorShape(tuple(shape), tensor.dtype, tensor.device)
    return TensorShape(tuple(shape), torch.get_default_dtype(), torch.device("cpu"))
