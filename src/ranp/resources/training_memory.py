"""What a training step takes: parameters, gradients, optimizer state, and what autograd holds.

The forward and backward passes are run on fake tensors, in train mode, with autograd; every
storage that an operation makes is followed until it is freed. So the peak includes what the
backward pass holds for a moment, and excludes what in-place operations and views share. Then comes
the optimizer's step with its temporaries; its state is there from the beginning, as in every step
but the first.

For a CPU, what convolution kernels take while they run is counted too (see
`convolution_workspace`). For CUDA, sizes are rounded as its allocator rounds them, and there is an
allowance for what no tensor accounts for: the context with its libraries, and gaps between blocks.
Workspaces of cuDNN are not counted: it takes one that fits, and another kernel where none does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from ranp.errors import UsageError
from ranp.graph import ExampleInput, TensorShape, describe_inputs, named_tensors, unwrap
from ranp.graph.operation import tensors_in
from ranp.graph.surgery import meta_copy, swapped_tensors, training_mode
from ranp.recompute import checkpointed
from ranp.resources.autocast import DTYPES, Precision, autocast, rules_of
from ranp.resources.convolution_workspace import convolution_workspace
from ranp.resources.live_bytes import LiveBytes
from ranp.resources.measuring import mean_of

Optimizer = Literal["sgd", "momentum", "adam", "adamw", "amsgrad"]
Device = Literal["cpu", "cuda"]
Loss = Callable[[Any], Tensor]

# Optimizer states, each of the size of the parameters.
STATES: Mapping[str, int] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "amsgrad": 3}

CUDA_BLOCK = 512
"""CUDA's caching allocator hands out multiples of it, in bytes."""
CUDA_CONTEXT = 512 * 2**20
"""Allowance for the CUDA context with the kernels of PyTorch and its libraries, in bytes."""
CUDA_GAPS = 0.05
"""Allowance for gaps between the allocator's blocks, as a share of what is alive."""


@dataclass(frozen=True)
class Holder:
    """A module and what it holds at the peak.

    Attributes:
        module: Its name; "" is the network's own forward and the loss.
        bytes: What it holds: outputs saved for the backward pass, gradients of activations, and
            the workspace of the operation under way.
    """

    module: str
    bytes: int


@dataclass(frozen=True)
class Timeline:
    """The bytes alive during a training step.

    Attributes:
        bytes: After every operation; what the operation itself takes while it runs included.
        modules: The module on whose behalf each operation ran.
        backward: The first operation of the backward pass.
        step: The first operation of the optimizer's step.
    """

    bytes: tuple[int, ...]
    modules: tuple[str, ...]
    backward: int
    step: int

    @property
    def peak_at(self) -> int:
        """The operation at which most is alive."""
        return max(range(len(self.bytes)), key=self.bytes.__getitem__)

    @property
    def peak_phase(self) -> str:
        """What is under way then: "forward", "backward" or "step"."""
        at = self.peak_at
        return "forward" if at < self.backward else "backward" if at < self.step else "step"


@dataclass(frozen=True)
class TrainingMemory:
    """Predicted bytes of a training step.

    Attributes:
        parameters: Parameters and buffers.
        gradients: Gradients of the parameters.
        optimizer: State of the optimizer.
        activations: What is alive at the end of the forward pass for the sake of the backward.
        allowance: For what no tensor accounts for; 0 on a CPU.
        peak: The most that is alive at one time, everything above included.
        timeline: What is alive when, without the allowance.
        holders: The modules that hold the peak, largest first; parameters, gradients and
            optimizer state are not in it.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    allowance: int
    peak: int
    timeline: Timeline
    holders: tuple[Holder, ...]

    def totals(self) -> dict[str, int]:
        """Return the totals as plain numbers."""
        names = ("parameters", "gradients", "optimizer", "activations", "allowance", "peak")
        return {name: getattr(self, name) for name in names}


def predict_training_memory(
    model: nn.Module,
    example_input: ExampleInput,
    *,
    optimizer: Optimizer = "adam",
    loss: Loss | None = None,
    precision: Precision = "32",
    recompute: bool = False,
    device: Device | None = None,
) -> TrainingMemory:
    """Predict the memory of a training step, at any size, without allocating it.

    Args:
        model: Any module; it is not changed.
        example_input: A batch, or its shape.
        optimizer: "sgd", "momentum", "adam", "adamw" or "amsgrad".
        loss: Makes a scalar of the model's output; the mean of all outputs if not given.
        precision: "32", or mixed precision "bf16" or "16": activations are half as wide, weights
            stay float32.
        recompute: With activation checkpointing (see `ranp.recompute.checkpointed`).
        device: "cpu" or "cuda", whether there is one here or not; where the model is if not given.
            PyTorch's "meta" stands for CUDA.
    """
    _check(optimizer, precision, device)
    model = unwrap(model)
    inputs = describe_inputs(model, example_input)
    shapes = {name: TensorShape.of(tensor) for name, tensor in named_tensors(model)}
    learnt = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if device is None:
        device = "cpu" if all(s.device.type == "cpu" for s in shapes.values()) else "cuda"
    on_cpu = device == "cpu"
    live = LiveBytes(
        convolution_workspace if on_cpu else _no_workspace, 1 if on_cpu else CUDA_BLOCK
    )
    shadow = meta_copy(model)
    with warnings.catch_warnings(), training_mode(shadow, True):
        warnings.simplefilter("ignore")
        with FakeTensorMode(allow_non_fake_inputs=True):
            tensors = {name: _empty(shape) for name, shape in shapes.items()}
            for name in learnt:
                tensors[name].requires_grad_(True)
            args, kwargs = pytree.tree_map(
                lambda leaf: _empty(leaf) if isinstance(leaf, TensorShape) else leaf,
                (inputs.args, inputs.kwargs),
            )
            state = [torch.empty_like(tensors[n]) for n in learnt for _ in range(STATES[optimizer])]
            for kind, given in (("parameters", tensors), ("optimizer", state)):
                for tensor in tensors_in(given):
                    live.follow(tensor, kind)
            for tensor in tensors_in((args, kwargs)):
                live.follow(tensor, "input")
            resting = live.now
            with (
                swapped_tensors(shadow, tensors),
                checkpointed(shadow) if recompute else nullcontext(),
                live.watching(shadow),
                rules_of(device),
            ):
                value = _forward(shadow, args, kwargs, loss, precision)
                held, backward = live.now, len(live.bytes)
                _run_backward(value)
                del value
            step = len(live.bytes)
            parameters = [tensors[name] for name in sorted(learnt)]
            for besides in step_temporaries([p.nbytes for p in parameters], optimizer, device):
                live.note("optimizer", besides)
    sizes = {name: t.numel() * t.element_size() for name, t in named_tensors(model)}
    gradients = sum(sizes[name] for name in learnt)
    allowance = 0 if on_cpu else CUDA_CONTEXT + int(CUDA_GAPS * live.peak)
    return TrainingMemory(
        parameters=sum(sizes.values()),
        gradients=gradients,
        optimizer=STATES[optimizer] * gradients,
        activations=held - resting,
        allowance=allowance,
        peak=live.peak + allowance,
        timeline=Timeline(tuple(live.bytes), tuple(live.owners), backward, step),
        holders=_holders(live),
    )


def step_temporaries(
    parameters: Sequence[int], optimizer: Optimizer, device: Device
) -> tuple[int, ...]:
    """Return what PyTorch's optimizers take besides their state, as they go through the parameters.

    Adam divides by the root of a state. On a CPU it goes from parameter to parameter, and has the
    root and the quotient of each; on CUDA it has the roots of all of them at once.

    Args:
        parameters: Sizes of the parameters in bytes.
        optimizer: SGD changes everything in place.
        device: Where the parameters are.
    """
    if STATES[optimizer] < 2:
        return (0,)
    if device == "cpu":
        return tuple(2 * size for size in parameters) or (0,)
    return (sum(parameters),)


def _check(optimizer: str, precision: str, device: str | None) -> None:
    if optimizer not in STATES:
        raise UsageError(f"unknown optimizer '{optimizer}': use {', '.join(STATES)}")
    if precision not in DTYPES:
        raise UsageError(f"unknown precision '{precision}': use {', '.join(DTYPES)}")
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"unknown device '{device}': use cpu or cuda")


def _no_workspace(func: Any, args: tuple[Any, ...], out: Any) -> int:
    return 0


def _empty(shape: TensorShape) -> Tensor:
    """Return a tensor without content on the CPU, where all steps are simulated."""
    return torch.empty(shape.shape, dtype=shape.dtype, device="cpu")


def _forward(
    model: nn.Module, args: Any, kwargs: Any, loss: Loss | None, precision: Precision
) -> Tensor:
    """Forward and loss; in mixed precision inputs are cast down, outputs back, as in Fabric."""
    if precision != "32":
        args, kwargs = _cast((args, kwargs), DTYPES[precision])
    with autocast(precision):
        output = model(*args, **kwargs)
    output = _cast(output, torch.float32) if precision != "32" else output
    return loss(output) if loss else mean_of(output)


def _run_backward(value: Tensor) -> None:
    """Like `value.backward()`, which would leave the rules of autocast behind."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.run_backward((value,), (torch.ones_like(value),), False, False, (), True, True)


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map(
        lambda t: t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t, tree
    )


def _holders(live: LiveBytes) -> tuple[Holder, ...]:
    held = live.at_peak.most_common()
    return tuple(Holder(module, size) for module, size in held if module not in _NO_MODULES)


_NO_MODULES = ("parameters", "optimizer", "input")
