"""The user's loss on fake tensors: what it keeps for the backward pass takes memory too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.nn import functional
from torch.utils import _pytree as pytree

from ranp.fitting.costing import LossAt, no_loss
from ranp.fitting.training_step import TrainingStep
from ranp.graph import TensorShape
from ranp.pruning import LossFunction
from ranp.resources.measuring import mean_of
from ranp.resources.training_memory import Loss


def loss_like(
    loss: LossFunction | None, x: Tensor | None, target: Any, tell: Callable[[str], None]
) -> LossAt:
    """A loss on targets like those of a batch, at the size of any way to train.

    Args:
        loss: From output and target to a scalar; None for the mean of the outputs.
        x: The input of a batch.
        target: Its target, or several. Dimensions that are as large as those of the input at the
            same place grow with it: the first with the batch, the last with space. Targets of
            lower resolutions (deep supervision) keep their share of it.
        tell: Is told, once, if the loss depends on values: fake tensors have none.
    """
    if loss is None or x is None:
        return no_loss
    samples, space = x.shape[0], tuple(x.shape[2:])
    told: list[str] = []
    shapes = pytree.tree_map(
        lambda leaf: TensorShape.of(leaf) if isinstance(leaf, Tensor) else leaf, target
    )

    def resized(shape: tuple[int, ...], step: TrainingStep) -> tuple[int, ...]:
        sizes, edges = list(shape), shape[-len(space) :]
        if _is_downsampled(shape, space):
            trained = zip(step.sample[1:], edges, space, strict=True)
            sizes[-len(space) :] = [round(new * edge / whole) for new, edge, whole in trained]
        if sizes and shape[0] == samples:
            sizes[0] = step.batch
        return tuple(sizes)

    def at(step: TrainingStep) -> Loss:
        def make(leaf: Any) -> Any:
            if isinstance(leaf, TensorShape):
                return torch.empty(resized(leaf.shape, step), dtype=leaf.dtype)
            return leaf

        def value(output: Any) -> Tensor:
            try:
                return loss(output, pytree.tree_map(make, shapes))
            except (DataDependentOutputException, DynamicOutputShapeException):
                if not told:
                    told.append("the memory of the loss is not in it: it depends on values")
                    tell(told[0])
                return mean_of(output)

        return value

    return at


def _is_downsampled(shape: tuple[int, ...], space: tuple[int, ...]) -> bool:
    """Return whether a target ends in the input's edges, or in whole fractions of them.

    A single edge that differs says nothing: it may be a number of classes.
    """
    edges = shape[-len(space) :]
    if edges == space or len(space) < 2 or len(shape) <= len(space):
        return bool(space) and edges == space
    return max(edges) > 1 and all(
        edge > 0 and whole % edge == 0 for whole, edge in zip(space, edges, strict=True)
    )


def loss_by_output(step: TrainingStep) -> Loss:
    """Return the cross-entropy with a label for every voxel of the output, at any size."""

    def loss(output: Tensor) -> Tensor:
        result: Tensor = functional.cross_entropy(
            output, output.new_zeros(output[:, 0].shape, dtype=torch.long)
        )
        return result

    return loss
