"""Shapes with or without a batch: what a network's first convolution makes of them decides."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from ranp.errors import TraceError, UsageError
from ranp.graph.inputs import (
    ExampleInput,
    Inputs,
    TensorShape,
    describe_inputs,
    describe_shape,
)
from ranp.graph.surgery import meta_copy, named_tensors
from ranp.graph.tracing import Mode, Tracer

_Convolution = nn.modules.conv._ConvNd

logger = logging.getLogger("ranp")


def describe_batch(model: nn.Module, example: ExampleInput) -> Inputs:
    """Turn an example input into its description; the shape of a sample gets a batch of one."""
    inputs = describe_inputs(model, example)
    if isinstance(example, Sequence) and all(isinstance(size, int) for size in example):
        return describe_inputs(model, with_batch(model, inputs.shapes[0]))
    return inputs


def with_batch(model: nn.Module, shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with a batch of one in front, if it is that of a sample."""
    shape = tuple(shape)
    convolutions = [each for each in model.modules() if isinstance(each, _Convolution)]
    short = any(len(shape) < _dims(each) for each in convolutions)
    if not short or _missing_dims(model, shape) != 1:
        return shape
    logger.warning("input %s is taken as one sample, in a batch of 1", describe_shape(shape))
    return (1, *shape)


def split_batch(
    model: nn.Module, shape: Sequence[int], batch: int | None, *, like: Sequence[int] = ()
) -> tuple[int | None, tuple[int, ...]]:
    """Return batch and sample of a shape that may be that of a sample alone.

    `like` is the shape of a batch that the model takes, if there is one. A batch in the shape that
    is another one than what was given is refused.
    """
    shape = tuple(shape)
    if not (len(shape) == len(like) if like else _missing_dims(model, shape) == 0):
        return batch, shape
    if batch is not None and shape[0] not in (1, batch):
        raise UsageError(
            f"input must be the shape of one sample, or of a batch of {batch}, got "
            f"{describe_shape(shape)}; give {describe_shape(shape[1:])}"
        )
    batch = shape[0] if batch is None else batch
    logger.warning("input %s is taken as a batch of %d", describe_shape(shape), shape[0])
    return batch, shape[1:]


class _ToFirstConvolution(Tracer):
    missing: int | None = None

    def module_begins(self, path: str, inputs: Any) -> None:
        module = self.model.get_submodule(path)
        if isinstance(module, _Convolution) and inputs and isinstance(inputs[0], Tensor):
            self.missing = _dims(module) - inputs[0].dim()
            raise TraceError("that is far enough")


def _missing_dims(model: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Return how many dimensions the first convolution lacks; None if it is not reached."""
    tensors = {name: TensorShape.of(tensor) for name, tensor in named_tensors(model)}
    tracer = _ToFirstConvolution(meta_copy(model))
    with suppress(TraceError):
        tracer.forward(tensors, describe_inputs(model, shape), Mode(training=False))
    return tracer.missing


def _dims(convolution: _Convolution) -> int:
    """Return the dimensions of a batch that a convolution takes."""
    return len(convolution.kernel_size) + 2
