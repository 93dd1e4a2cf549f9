"""What a training step takes: parameters, gradients, optimizer state, and what autograd holds.

The forward and backward passes are run on fake tensors, in train mode, with autograd; every
storage that an operation makes is followed until it is freed. So the peak includes what the
backward pass holds for a moment, and excludes what in-place operations and views share. Then comes
the optimizer's step with its temporaries; its state is there from the beginning, as in every step
but the first. The model's outputs live until the backward pass is done, as in
`output = model(x); criterion(output, y).backward()`.

For a CPU, what kernels take while they run is counted too (see `convolution_workspace` and
`kernel_workspace`). For CUDA, sizes are rounded as its allocator rounds them, and there is an
allowance for what no tensor accounts for: the context with its libraries, and gaps between blocks.
Workspaces of cuDNN are not counted: it takes one that fits, and another kernel where none does.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

from torch import Tensor, nn

from ranp.display import html_table
from ranp.errors import UsageError, check_one_of
from ranp.graph import ExampleInput, describe_batch, named_tensors, unwrap
from ranp.resources.autocast import DTYPES, Precision
from ranp.resources.fake_step import NotTraceable, call_model, fake_training, run_passes
from ranp.resources.kernel_workspace import WORKSPACES
from ranp.resources.live_bytes import LiveBytes, Log
from ranp.resources.measuring import mean_of

Optimizer = Literal["sgd", "momentum", "adam", "adamw", "amsgrad"]
Device = Literal["cpu", "cuda"]
Loss = Callable[[Any], Tensor]
"""`loss(output)` -> scalar tensor."""
Forward = Callable[[nn.Module, Any], Tensor]
"""`forward(model, batch)` -> scalar tensor."""

# Optimizer states, each of the size of the parameters.
STATES: Mapping[str, int] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "amsgrad": 3}

CUDA_CONTEXT = 512 * 2**20
"""Allowance for the CUDA context with the kernels of PyTorch and its libraries, in bytes."""
CUDA_GAPS = 0.05
"""Allowance for gaps between the allocator's blocks, as a share of what is alive."""
LOSS_MARGIN = 8
"""Margin for a loss that cannot be followed, as a multiple of the outputs in float32: Dice and
cross-entropy together take 7.5 times as much."""


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """How a network is trained, as far as the memory of a step depends on it.

    Attributes:
        optimizer: Whose state is counted.
        precision: "32", or mixed precision "bf16" or "16".
        recompute: Whether activations are checkpointed.
        device: "cpu" or "cuda".
    """

    optimizer: Optimizer = "adam"
    precision: Precision = "32"
    recompute: bool = False
    device: Device = "cpu"

    def __post_init__(self) -> None:
        check_one_of("optimizer", self.optimizer, STATES)
        check_one_of("precision", self.precision, DTYPES)
        check_one_of("device", self.device, get_args(Device))


class LossNotCounted(UserWarning):
    """The memory of a loss could not be predicted; a margin stands in its place."""


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


_PHASES = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "step": "in the optimizer's step",
}


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

    @property
    def peak_place(self) -> str:
        """The same as text, such as "in the forward pass"."""
        return _PHASES[self.peak_phase]


@dataclass(frozen=True)
class TrainingMemory:
    """Predicted bytes of a training step.

    Attributes:
        parameters: Parameters and buffers.
        gradients: Gradients of the parameters.
        optimizer: State of the optimizer.
        activations: Alive at the end of the forward pass: saved for the backward pass, and the
            model's outputs.
        allowance: Allowance for what no tensor accounts for; 0 on a CPU.
        loss_margin: Margin for a loss that could not be traced; 0 if it is counted.
        untraced: Why the loss could not be traced; "" if it is counted.
        peak: The most that is alive at one time, everything above included.
        timeline: What is alive when, without the allowance.
        log: What forward and backward pass allocate, for `ranp.resources.step_model`.
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
    loss_margin: int = 0
    untraced: str = ""
    log: Log = field(default_factory=Log, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"TrainingMemory(peak {self.peak / 2**20:,.1f} MiB, {self.timeline.peak_place})"

    def _repr_html_(self) -> str:
        # What a kernel works with can be more than all the rest, and is in none of the totals.
        held = {f"of it, {h.module or 'between layers, loss'}": h.bytes for h in self.holders[:3]}
        rows = ((n, f"{size / 2**20:,.1f}") for n, size in {**self.totals(), **held}.items())
        return html_table(repr(self), ("", "MiB"), rows)

    def totals(self) -> dict[str, int]:
        """Return the totals as plain numbers."""
        names = ["parameters", "gradients", "optimizer", "activations", "allowance", "peak"]
        names += ["loss_margin"] if self.loss_margin else []
        return {name: getattr(self, name) for name in names}


def predict_training_memory(
    model: nn.Module,
    example_input: ExampleInput,
    *,
    optimizer: Optimizer = "adam",
    loss: Loss | None = None,
    forward: Forward | None = None,
    precision: Precision = "32",
    recompute: bool = False,
    device: Device | None = None,
) -> TrainingMemory:
    """Predict the memory of a training step, at any size, without allocating it.

    A loss that branches on values of the output, or leaves PyTorch (for SciPy, say), cannot be
    traced. Then a `LossNotCounted` warning says so, and the peak includes a margin of `LOSS_MARGIN`
    times the size of the outputs instead.

    Args:
        model: Any module; it is not changed.
        example_input: A batch, or its shape; the shape of a sample means a batch of one.
        optimizer: "sgd", "momentum", "adam", "adamw" or "amsgrad".
        loss: `loss(output)` -> scalar tensor; the mean of all outputs if None.
        forward: `forward(model, batch)` -> scalar tensor, instead of `loss`; `example_input` is
            then the batch.
        precision: "32", or mixed precision "bf16" or "16": activations take half the memory,
            weights stay float32.
        recompute: Whether to use activation checkpointing (see `ranp.recompute.checkpointed`).
        device: "cpu" or "cuda" (which need not be available here); the model's device if None.
            PyTorch's "meta" stands for CUDA.

    Raises:
        TraceError: The model or the loss fails on such a batch.
    """
    model = unwrap(model)
    if device is None:
        on_cpu = all(tensor.device.type == "cpu" for _, tensor in named_tensors(model))
        device = "cpu" if on_cpu else "cuda"
    settings = StepSettings(
        optimizer=optimizer, precision=precision, recompute=recompute, device=device
    )
    if forward is None:
        _check_loss(loss)
        inputs = describe_batch(model, example_input)
        batch: Any = (inputs.args, inputs.kwargs)
        call: Forward = partial(call_model, loss or mean_of)
    else:
        call, batch = forward, example_input
    try:
        return _run_step(model, settings, call, batch)
    except NotTraceable as error:
        if error.call.output_bytes is None:
            raise
        margin = LOSS_MARGIN * error.call.output_bytes
        plain = partial(call_model, mean_of)
        without = _run_step(model, settings, plain, error.call.arguments)
        warnings.warn(
            f"the memory of the loss is not predicted ({error}): a margin of {LOSS_MARGIN} "
            f"times the outputs, {margin / 2**20:,.1f} MiB, is added; measure a step of your own",
            LossNotCounted,
            stacklevel=2,
        )
        peak = without.peak + margin
        return replace(without, loss_margin=margin, untraced=str(error), peak=peak)


def _run_step(
    model: nn.Module, settings: StepSettings, forward: Forward, batch: Any
) -> TrainingMemory:
    """Run forward, backward and the optimizer's step on fake tensors."""
    optimizer, device = settings.optimizer, settings.device
    live = LiveBytes(WORKSPACES[device])
    with fake_training(model) as (shadow, tensors):
        learnt = [tensor for tensor in tensors.values() if tensor.requires_grad]
        live.follow_all(tensors, "parameters")
        for tensor in learnt * STATES[optimizer]:
            live.hold(tuple(tensor.shape), tensor.element_size(), "optimizer")
        batch = live.receive(batch, "input")
        resting = live.now
        held, backward = run_passes(shadow, tensors, live, forward, batch, settings)
        end = len(live.bytes)
        numbers = [i for i, t in enumerate(tensors.values()) if t.requires_grad]
        events, kernels = live.log.events[:], live.log.kernels[:]  # without what follows
        log = replace(live.log, events=events, kernels=kernels, learnt=numbers)
        for temporaries in step_temporaries([p.nbytes for p in learnt], optimizer, device):
            live.note("optimizer", temporaries)
    gradients = sum(tensor.nbytes for tensor in learnt)
    allowance = allowance_for(live.peak, device)
    return TrainingMemory(
        parameters=sum(tensor.nbytes for tensor in tensors.values()),
        gradients=gradients,
        optimizer=STATES[optimizer] * gradients,
        activations=held - resting,
        allowance=allowance,
        peak=live.peak + allowance,
        timeline=Timeline(tuple(live.bytes), tuple(live.owners), backward, end),
        holders=tuple(
            Holder(module, size)
            for module, size in live.at_peak.most_common()
            if module not in ("parameters", "optimizer", "input")
        ),
        log=log,
    )


def allowance_for(alive: int, device: Device) -> int:
    """Return what no tensor accounts for on a device, beside the bytes that are alive."""
    return 0 if device == "cpu" else CUDA_CONTEXT + int(CUDA_GAPS * alive)


def step_temporaries(
    parameters: Sequence[int], optimizer: Optimizer, device: Device
) -> tuple[int, ...]:
    """Return the temporaries of PyTorch's optimizers, in bytes, as they go through the parameters.

    Adam divides by the root of a state. On a CPU it goes from parameter to parameter, and has the
    root and the quotient of each; on CUDA it has the roots of all of them at once. SGD changes
    everything in place.
    """
    if STATES[optimizer] < 2:
        return (0,)
    if device == "cpu":
        return tuple(2 * size for size in parameters) or (0,)
    return (sum(parameters),)


def _check_loss(loss: Loss | None) -> None:
    """Refuse a loss that asks for more than the output."""
    if loss is None:
        return
    name = getattr(loss, "__name__", type(loss).__name__)
    try:
        inspect.signature(getattr(loss, "forward", loss)).bind(None)
    except TypeError as error:
        raise UsageError(
            f"loss must be a function of the output alone, got {name} ({error}); give "
            f"loss=lambda output: {name}(output, target), or a forward(model, batch)"
        ) from error
    except ValueError:  # a function in C has no signature
        return
