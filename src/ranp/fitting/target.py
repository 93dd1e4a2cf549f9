"""The user's loss on fake tensors: what it keeps for the backward pass takes memory too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ranp.fitting.training_step import TrainingStep
from ranp.graph import ExampleInput
from ranp.graph.known_values import Tiled
from ranp.peeking import called_with, input_of, input_of_pair
from ranp.pruning import Forward
from ranp.pruning.batches import name_of
from ranp.resources.measuring import zero_label_cross_entropy
from ranp.resources.training_memory import Loss


@dataclass(frozen=True)
class StepInput:
    """What `predict_training_memory` takes to simulate a way to train.

    Attributes:
        example_input: The shape of a batch, or the batch that `forward` takes.
        loss: `loss(output)` -> scalar tensor; None for the mean of the outputs.
        forward: `forward(model, batch)` -> scalar tensor, instead of `loss`.
        name: Name of the loss, for messages.
    """

    example_input: Any
    loss: Loss | None = None
    forward: Forward | None = None
    name: str = "mean of the outputs"


StepInputAt = Callable[[TrainingStep], StepInput]


def no_loss(step: TrainingStep) -> StepInput:
    """Return a step that differentiates the mean of the outputs."""
    return StepInput(step.shape)


def batch_like(forward: Forward, batch: Any) -> StepInputAt:
    """Return steps on batches like a given one, at the size of any way to train.

    Values are those of the batch, repeated or cut off: a loss may look at its targets.

    Args:
        forward: `forward(model, batch)` -> scalar tensor.
        batch: A batch. Dimensions of its tensors that are as large as those of its input at the
            same place grow with it: the first with the batch, the last with space. Targets of
            lower resolutions (deep supervision) keep their share of it.
    """
    x = input_of(batch)
    samples, space = x.shape[0], tuple(x.shape[2:])

    def resized(shape: tuple[int, ...], step: TrainingStep) -> tuple[int, ...]:
        sizes, edges = list(shape), shape[-len(space) :]
        if _is_downsampled(shape, space):
            trained = zip(step.sample[1:], edges, space, strict=True)
            sizes[-len(space) :] = [round(new * edge / whole) for new, edge, whole in trained]
        if sizes and shape[0] == samples:
            sizes[0] = step.batch
        return tuple(sizes)

    def at(step: TrainingStep) -> StepInput:
        def make(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return Tiled(leaf, step.shape if leaf is x else resized(tuple(leaf.shape), step))

        return StepInput(pytree.tree_map(make, batch), forward=forward, name=name_of(forward))

    return at


def example_at(
    model: nn.Module, forward: Forward | None, batch: Any, step: TrainingStep
) -> ExampleInput:
    """Return one sample to trace a model with, at the size of a way to train.

    Where the user's own forward calls the model with something else than a batch's input, such as
    several inputs, it is what it calls it with.
    """
    if forward is not None and batch is not None:
        tiled = batch_like(forward, batch)(replace(step, batch=1)).example_input
        sample = pytree.tree_map(lambda leaf: leaf() if isinstance(leaf, Tiled) else leaf, tiled)
        called = called_with(model, forward, sample)
        if called is not None:
            return called
        input_of_pair(batch, forward)  # refused where nothing tells what the model takes
    return (1, *step.sample)


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


def loss_by_output(step: TrainingStep) -> StepInput:
    """Return the cross-entropy with a label for every voxel of the output, at any size."""
    return StepInput(step.shape, zero_label_cross_entropy, name="cross_entropy")
