"""What a training step takes: parameters, gradients, optimizer state, and what autograd holds.

The forward and backward passes are run on fake tensors, in train mode, with autograd; every
storage that an operation makes is followed until it is freed. So the peak includes what the
backward pass holds for a moment, and excludes what in-place operations and views share. On a CPU a
convolution works on copies of what goes into and comes out of it, in another layout (oneDNN); they
are counted while it runs. Not included are the loss, unless one is given, workspaces of other
devices' kernels, and what an allocator holds back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ranp.errors import UsageError
from ranp.graph import ExampleInput, TensorShape, describe_inputs, named_tensors, rebuild, unwrap
from ranp.graph.operation import tensors_in
from ranp.graph.surgery import mode

Optimizer = Literal["sgd", "momentum", "adam", "amsgrad"]
# Optimizer states, each of the size of the parameters.
_STATES: dict[str, int] = {"sgd": 0, "momentum": 1, "adam": 2, "amsgrad": 3}


@dataclass(frozen=True)
class TrainingMemory:
    """Predicted bytes of a training step.

    Attributes:
        parameters: Parameters and buffers.
        gradients: Gradients of the parameters.
        optimizer: State of the optimizer.
        activations: What is alive at the end of the forward pass for the sake of the backward.
        peak: The most that is alive at one time, everything above included.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    peak: int


class _LiveBytes(TorchDispatchMode):
    """Adds up the bytes of storages from when an operation makes them until they are freed."""

    def __init__(self, *, copies_in_convolutions: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self._copies_in_convolutions = copies_in_convolutions
        self.peak = 0

    def follow(self, tensor: Tensor) -> None:
        """Counts a tensor's storage, once, for as long as it lives."""
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        if reference.cdata not in self._live or self._live[reference.cdata][0].expired():
            self._live[reference.cdata] = (reference, storage.nbytes())

    def now(self) -> int:
        """The bytes alive now."""
        self._live = {key: item for key, item in self._live.items() if not item[0].expired()}
        return sum(size for _, size in self._live.values())

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            self.follow(tensor)
        copies = _convolution_copies(func, args, out) if self._copies_in_convolutions else 0
        self.peak = max(self.peak, self.now() + copies)
        return out


def _convolution_copies(func: Any, args: tuple[Any, ...], out: Any) -> int:
    """Bytes of the copies that a convolution works on; 0 for other operations."""
    if func is torch.ops.aten.convolution.default:
        return sum(t.nbytes for t in tensors_in((args, out)))
    if func is torch.ops.aten.convolution_backward.default:
        # Gradients of the input and of the weight are computed one after the other.
        by_input, by_weight = (0 if t is None else int(t.nbytes) for t in out[:2])
        grad, x, weight = (int(t.nbytes) for t in args[:3])
        return grad + max(weight + by_input, x + by_weight)
    return 0


def predict_training_memory(
    model: nn.Module,
    example_input: ExampleInput,
    *,
    optimizer: Optimizer = "adam",
    loss: Callable[[Any], Tensor] | None = None,
) -> TrainingMemory:
    """Predicts the memory of a training step, at any size, without allocating it.

    Args:
        model: Any module; it is not changed.
        example_input: A batch, or its shape.
        optimizer: "sgd", "momentum", "adam" or "amsgrad".
        loss: Makes a scalar of the model's output; the mean of all outputs if not given.
    """
    if optimizer not in _STATES:
        raise UsageError(f"unknown optimizer '{optimizer}': use {', '.join(_STATES)}")
    model = unwrap(model)
    inputs = describe_inputs(model, example_input)
    shapes = {name: TensorShape.of(tensor) for name, tensor in named_tensors(model)}
    wanted = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    shadow = rebuild(model, lambda _, tensor: tensor.to("meta"), {})
    on_cpu = all(tensor.device.type == "cpu" for tensor in shapes.values())
    live = _LiveBytes(copies_in_convolutions=on_cpu)
    with warnings.catch_warnings(), mode(shadow, True):
        warnings.simplefilter("ignore")
        with FakeTensorMode(allow_non_fake_inputs=True):
            tensors = {
                name: shape.materialize().requires_grad_(name in wanted)
                for name, shape in shapes.items()
            }
            args, kwargs = inputs.materialize()
            for tensor in tensors_in((tensors, args, kwargs)):
                live.follow(tensor)
            resting = live.now()
            with live:
                output = torch.func.functional_call(shadow, tensors, args, kwargs)
                value = loss(output) if loss else _mean(output)
                del output
                held = live.now()
                torch.autograd.backward(value)
    sizes = {name: t.numel() * t.element_size() for name, t in named_tensors(model)}
    gradients = sum(sizes[name] for name in wanted)
    state = _STATES[optimizer] * gradients
    return TrainingMemory(
        parameters=sum(sizes.values()),
        gradients=gradients,
        optimizer=state,
        activations=held - resting,
        peak=live.peak + state,
    )


def _mean(output: Any) -> Tensor:
    """A scalar that every output takes part in."""
    parts = [t.float().mean() for t in tensors_in(output) if t.is_floating_point()]
    return torch.stack(parts).sum()
