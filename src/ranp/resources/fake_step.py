"""A forward and a backward pass on fake tensors, in train mode, with autograd."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch.utils import _pytree as pytree

from ranp.errors import RanpError, TraceError
from ranp.graph import TensorShape, named_tensors
from ranp.graph.fake_tensors import fake_empty
from ranp.graph.known_values import VALUE_DEPENDENT
from ranp.graph.operation import tensors_in
from ranp.graph.surgery import meta_copy, swapped_tensors, training_mode
from ranp.graph.tracing import describe_place
from ranp.recompute import checkpointed
from ranp.resources.autocast import DTYPES, Precision, autocast, autocast_rules
from ranp.resources.live_bytes import LiveBytes, shapes_of
from ranp.user_code import describe_failure, failing_line

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


class FakeStep:
    """The context in which a training step of a model runs on fake tensors.

    They are on the CPU, whatever the step is about.

    Attributes:
        tensors: Parameters and buffers by name.
    """

    def __init__(self, model: nn.Module, live: LiveBytes) -> None:
        self._live = live
        self._shadow = meta_copy(model)
        self._shapes = {name: TensorShape.of(tensor) for name, tensor in named_tensors(model)}
        self._learnt = [name for name, p in model.named_parameters() if p.requires_grad]
        self._stack = ExitStack()
        self.tensors: dict[str, Tensor] = {}

    def __enter__(self) -> FakeStep:
        self._stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # they are about values, and there are none here
        self._stack.enter_context(training_mode(self._shadow, True))
        self._stack.enter_context(_silent(logging.getLogger(fake_tensor.__name__)))
        mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
        self._stack.enter_context(mode)
        self.tensors = {
            name: fake_empty(mode, shape.shape, shape.dtype) for name, shape in self._shapes.items()
        }
        for name in self._learnt:
            self.tensors[name].requires_grad_(True)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def run(
        self,
        forward: Callable[[nn.Module, Any], Tensor],
        batch: Any,
        precision: Precision,
        recompute: bool,
        device: Literal["cpu", "cuda"],
    ) -> tuple[int, int]:
        """Run the forward and the backward pass.

        Returns:
            The bytes that are alive between them, and the number of operations before.
        """
        call = ModelCall()
        self._shadow.register_forward_pre_hook(call.begins, with_kwargs=True)
        self._shadow.register_forward_hook(call.ends)
        with (
            swapped_tensors(self._shadow, self.tensors),
            checkpointed(self._shadow) if recompute else nullcontext(),
            _mixed_precision(self._shadow, precision),
            self._live.watching(self._shadow),
            autocast_rules(device) if precision != "32" else nullcontext(),
        ):
            try:
                value = forward(self._shadow, batch)
                held, operations = self._live.now, len(self._live.bytes)
                _run_backward(value)
                call.output = None
            except Exception as error:
                raise self._explained(error, call) from error
        return held, operations

    def _explained(self, error: Exception, call: ModelCall) -> RanpError:
        in_loss = call.output_bytes is not None
        where = "the loss" if in_loss else describe_place(self._live.failed or "")
        what = describe_failure(error)
        cause = error.__cause__ if isinstance(error, RanpError) else error
        if isinstance(cause, VALUE_DEPENDENT):
            return NotTraceable(f"{where} asks for values of tensors{failing_line(cause)}", call)
        if isinstance(cause, _NOT_TRACEABLE) or ".numpy()" in str(cause):
            return NotTraceable(f"{where} asks for values of tensors ({what})", call)
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
    if precision == "32":
        yield
        return
    plain = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _cast((args, kwargs), DTYPES[precision])
        with autocast(precision):
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


def _run_backward(value: Tensor) -> None:
    """Like `value.backward()`, which would leave the rules of autocast behind."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.run_backward((value,), (torch.ones_like(value),), False, False, (), True, True)


@contextmanager
def _silent(log: logging.Logger) -> Iterator[None]:
    """It reports operations that fail; that is for us to do."""
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
