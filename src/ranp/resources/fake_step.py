"""A forward and a backward pass on fake tensors, in train mode, with autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch.utils import _pytree as pytree

from ranp.errors import RanpError, TraceError
from ranp.graph import named_tensors
from ranp.graph.fake_tensors import fake_empty, quiet_fake_mode
from ranp.graph.known_values import VALUE_DEPENDENT
from ranp.graph.operation import tensors_in
from ranp.graph.surgery import meta_copy, swapped_tensors, training_mode
from ranp.graph.tracing import describe_place
from ranp.recompute import checkpointed
from ranp.resources.autocast import DTYPES, CudaAutocastRules, Precision
from ranp.resources.live_bytes import LiveBytes, shapes_of
from ranp.user_code import describe_failure, failing_line

if TYPE_CHECKING:
    from ranp.resources.training_memory import StepSettings

_NOT_TRACEABLE = (
    fake_tensor.UnsupportedFakeTensorException,
    fake_tensor.UnsupportedOperatorException,
)


@dataclass
class ModelCall:
    """How a training step called the model.

    Attributes:
        arguments: Positional and keyword arguments, with shapes instead of tensors.
        output_bytes: Size of the outputs in float32; None if the model did not come to an end.
        output: The outputs: a training loop has a name for them until the backward pass is done.
    """

    arguments: Any = None
    output_bytes: int | None = None
    output: Any = None

    def begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Keep the arguments of the model."""
        self.arguments, self.output_bytes = shapes_of((args, kwargs)), None

    def ends(self, model: nn.Module, args: Any, output: Any) -> None:
        """Keep the outputs and their size."""
        self.output = output
        self.output_bytes = sum(4 * tensor.numel() for tensor in tensors_in(output))


class NotTraceable(TraceError):
    """A training step asks for values that depend on data, and is traced without any.

    Attributes:
        call: How the model was called before.
    """

    def __init__(self, message: str, call: ModelCall) -> None:
        super().__init__(message)
        self.call = call


@contextmanager
def fake_training(model: nn.Module) -> Iterator[tuple[nn.Module, dict[str, Tensor]]]:
    """Enter a mode of fake tensors, with a copy of a model, and its parameters and buffers by name.

    They are on the CPU, whatever the step is about.
    """
    shadow = meta_copy(model)
    with quiet_fake_mode() as mode, training_mode(shadow, True):
        tensors: dict[str, Tensor] = {
            name: fake_empty(mode, tensor.shape, tensor.dtype)
            for name, tensor in named_tensors(model)
        }
        for name, parameter in model.named_parameters():
            tensors[name].requires_grad_(parameter.requires_grad)
        yield shadow, tensors


def run_passes(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    live: LiveBytes,
    forward: Callable[[nn.Module, Any], Tensor],
    batch: Any,
    settings: StepSettings,
) -> tuple[int, int]:
    """Run the forward and the backward pass with what `fake_training` yields.

    Returns:
        The bytes that are alive between them, and the number of operations before.
    """
    call = ModelCall()
    model.register_forward_pre_hook(call.begins, with_kwargs=True)
    model.register_forward_hook(call.ends)
    is_low = settings.precision != "32"
    with (
        swapped_tensors(model, tensors),
        checkpointed(model) if settings.recompute else nullcontext(),
        _mixed_precision(model, settings.precision) if is_low else nullcontext(),
        live.watching(model),
        # Around the backward pass too: activation checkpointing runs forwards there.
        CudaAutocastRules() if is_low and settings.device == "cuda" else nullcontext(),
    ):
        try:
            value = forward(model, batch)
            held, operations = live.now, len(live.bytes)
            # As `value.backward()`, which would leave the rules of autocast behind.
            engine: Any = torch.autograd.Variable._execution_engine
            engine.run_backward((value,), (torch.ones_like(value),), False, False, (), True, True)
            call.output = None
        except Exception as error:
            raise _explain(error, call, live.failed or "") from error
    return held, operations


def _explain(error: Exception, call: ModelCall, module: str) -> RanpError:
    in_loss = call.output_bytes is not None
    where = "the loss" if in_loss else describe_place(module)
    what = describe_failure(error)
    cause = error.__cause__ if isinstance(error, RanpError) else error
    if isinstance(cause, VALUE_DEPENDENT):
        return NotTraceable(f"{where} needs the values of tensors{failing_line(cause)}", call)
    if isinstance(cause, _NOT_TRACEABLE) or ".numpy()" in str(cause):
        return NotTraceable(f"{where} needs the values of tensors ({what})", call)
    if isinstance(error, RanpError):
        return error
    return TraceError(
        f"the training step fails in {where}: {what}; check the example input"
        + " and the loss" * in_loss
    )


def call_model(loss: Callable[[Any], Tensor], model: nn.Module, batch: Any) -> Tensor:
    """The loss of a model; a batch is its positional and its keyword arguments."""
    args, kwargs = batch
    return loss(model(*args, **kwargs))


@contextmanager
def _mixed_precision(model: nn.Module, precision: Precision) -> Iterator[None]:
    """While inside, the model casts its inputs down and its outputs back, as in Fabric."""
    plain = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _cast((args, kwargs), DTYPES[precision])
        with torch.autocast("cpu", dtype=DTYPES[precision]):
            output = plain(*args, **kwargs)
        return _cast(output, torch.float32)

    model.forward = forward
    try:
        yield
    finally:
        del model.forward


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map(
        lambda t: t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t, tree
    )
