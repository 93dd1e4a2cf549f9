"""`ranp.optimize`: the same network, computed the way that is fastest on this machine."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ranp.errors import UsageError, check_one_of
from ranp.graph import ExampleInput, TensorShape, check_values, describe_batch, unwrap
from ranp.graph.operation import tensors_in
from ranp.graph.surgery import preserve_state, remembered_results, training_mode
from ranp.resources.comparing import norm_difference
from ranp.resources.latency import MODES, Mode, runner
from ranp.resources.machine import describe_machine, load
from ranp.resources.measuring import time_in_turns
from ranp.resources.timing_cache import TimingCache
from ranp.speed.convolution import Route, RoutedConv3d, can_route
from ranp.speed.folding import fold_norms, preceding_convolutions
from ranp.speed.functions import set_fast_functions
from ranp.speed.geometry import Geometry
from ranp.speed.layout import Layout
from ranp.speed.memory import keep_freed_memory
from ranp.speed.normalization import ChannelsLastBatchNorm3d
from ranp.speed.replacing import rebuilt_as, replace_module
from ranp.speed.selection import TOLERANCE, choose_route, repetitions
from ranp.speed.softmax import ChannelsLastSoftmax, PointwiseSoftmax, is_over_channels
from ranp.user_code import blame

AS_GIVEN = "as given"
LAYOUTS: tuple[Layout, ...] = ("channels-last", "standard")
_KINKS = 1e-2
_WORTH = 0.98  # what gains less than 2 % is not kept
_LONG = 3.0  # seconds; what runs longer needs no repetition


@dataclass(frozen=True)
class Trial:
    """One way to compute a network, tried as a whole.

    Attributes:
        name: What was done to the network.
        seconds: Seconds of a training step, or of a forward pass.
        deviation: Norm of the difference between its outputs and those of the network as given,
            relative to the norm of the outputs, with the statistics of batch norms frozen; above
            1e-5 a trial is not kept.
        training_deviation: The same of outputs and gradients in train mode; None for inference.
            Each convolution's gradients are compared alone, to 1e-5. In a whole network batch
            statistics multiply rounding errors, and one of them now and then puts a number on the
            other side of a ReLU's kink: two correct ways to compute in float32 then differ by
            1e-3 (as float32 and float64 do), so here only errors of another size count.
    """

    name: str
    seconds: float
    deviation: float
    training_deviation: float | None = None

    @property
    def is_equal(self) -> bool:
        """Whether its results are those of the network as given."""
        return self.deviation <= TOLERANCE and (self.training_deviation or 0.0) <= _KINKS


@dataclass(frozen=True)
class Optimization:
    """What was tried, measured and kept.

    Attributes:
        mode: "train" or "inference".
        shape: Shape of the example input.
        kept: The name of the trial that was kept.
        trials: All of them, the network as given first.
        routes: Route of every 3D convolution that can take one, by name.
        folded: Batch norms that are part of their convolution now.
        keeps_memory: Whether the process keeps freed memory.
        machine: What was measured on.
        load: Load average of the machine when the measurement began.
    """

    mode: Mode
    shape: tuple[int, ...]
    kept: str
    trials: tuple[Trial, ...]
    routes: Mapping[str, Route]
    folded: tuple[str, ...]
    keeps_memory: bool
    machine: Mapping[str, str | int]
    load: float

    @property
    def speedup(self) -> float:
        """How many times as fast as the network as given."""
        seconds = {trial.name: trial.seconds for trial in self.trials}
        return seconds[AS_GIVEN] / seconds[self.kept]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**asdict(self), "speedup": self.speedup}

    def __str__(self) -> str:
        lines = [
            f"{trial.name:<40} {1e3 * trial.seconds:9.1f} ms"
            + ("" if trial.is_equal else f"   not equal ({trial.deviation:.0e}): not kept")
            for trial in self.trials
        ]
        kept = f"kept: {self.kept}, {self.speedup:.2f} x as fast"
        memory = ["the process keeps freed memory"] if self.keeps_memory else []
        return "\n".join([*lines, kept, *memory])


@torch.random.fork_rng()
def optimize(
    model: nn.Module,
    example_input: ExampleInput,
    mode: Mode = "train",
    *,
    keep_memory: bool = False,
    cache: TimingCache | None = None,
) -> nn.Module:
    """Make a network faster on this machine, with the same results.

    Tries a channels-last memory layout with suitable upsampling, pooling and softmax; other ways to
    compute each convolution and its gradients; and fusing what follows a convolution (for
    inference: batch norms, a softmax at the end). Keeps only what is faster when measured here and
    gives the same result (within 1e-5).

    For training, parameters, buffers and their names stay the same, so checkpoints and weights can
    be exchanged with the original network. Make plans from the original network. A network for
    inference has its batch norms folded in and cannot be trained.

    Args:
        model: Any module that takes one tensor; it is not changed. Create your optimizer from the
            returned network, whose parameters are copies.
        example_input: A batch of the size you will use, or its shape: what is fastest depends on
            it.
        mode: "train" or "inference".
        keep_memory: Whether the whole process keeps freed memory from now on, which makes large
            volumes faster; `ranp.speed.return_freed_memory` undoes it.
        cache: Directory for measured times of convolutions; the user's cache if None.

    Returns:
        The faster network; `optimization_of` returns what was done.
    """
    check_one_of("mode", mode, MODES)
    model = unwrap(model)
    check_values(model)
    x = _example(model, example_input)
    busy = load()
    keeps_memory = keep_memory and x.device.type == "cpu" and keep_freed_memory()
    given = _Candidate(AS_GIVEN, _copy_model(model), {}, ())
    with blame("the network, given the example input,"):
        expected = given.run(x, mode)
    tried = {given: _compared(given.name, expected, expected)}
    if not tried[given].is_equal:
        raise UsageError(
            f"the {type(model).__name__} produces non-finite outputs or gradients, so ways to "
            "compute it cannot be compared; give another example_input"
        )
    cache = TimingCache() if cache is None else cache
    is_volume = x.device.type == "cpu" and x.dim() == 5 and x.dtype == torch.float32
    for layout in LAYOUTS if is_volume else ():  # of other inputs there is one way to compute
        candidate = _reroute(model, x, layout, mode, cache)
        tried[candidate] = trial = _compared(candidate.name, candidate.run(x, mode), expected)
        if trial.is_equal and trial.seconds < _WORTH * expected.seconds:
            break  # the other layout has to be better than the one given, and this one is
    trials = _timed(tried, x, mode)
    fastest = min((trial for trial in trials if trial.is_equal), key=lambda trial: trial.seconds)
    is_worth_it = fastest.seconds <= _WORTH * trials[0].seconds
    kept = next(c for c in tried if c.name == fastest.name) if is_worth_it else given
    if mode == "train":  # module by module: some may be frozen
        for module, same in zip(kept.model.modules(), model.modules(), strict=True):
            module.training = same.training
    else:
        kept.model.eval()
    kept.model.optimization = Optimization(  # type: ignore[assignment]
        mode=mode,
        shape=tuple(x.shape),
        kept=kept.name,
        trials=trials,
        routes=kept.routes,
        folded=kept.folded,
        keeps_memory=keeps_memory,
        machine=describe_machine(x.device),
        load=busy,
    )
    return kept.model


def optimization_of(model: nn.Module) -> Optimization:
    """Return what `optimize` did to a network."""
    found = getattr(model, "optimization", None)
    if not isinstance(found, Optimization):
        raise UsageError(f"this {type(model).__name__} did not come out of ranp.optimize")
    return found


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A copy of the network, computed in some way."""

    name: str
    model: nn.Module
    routes: Mapping[str, Route]
    folded: tuple[str, ...]

    def run(self, x: Tensor, mode: Mode) -> _Run:
        """Compute outputs and gradients once.

        Dropout is off: which numbers it draws for which voxel depends on the memory layout.
        """
        with training_mode(self.model, False), torch.no_grad():
            began = time.perf_counter()
            outputs = list(tensors_in(self.model(x)))
            seconds = time.perf_counter() - began
        if mode == "inference":
            return _Run(outputs, [], seconds)
        with preserve_state(self.model), training_mode(self.model, True):
            for module in self.model.modules():
                if isinstance(module, nn.modules.dropout._DropoutNd):
                    module.training = False
            began = time.perf_counter()
            trained = list(tensors_in(self.model(x)))
            loss = torch.stack([o.float().square().mean() for o in trained]).sum()
            torch.autograd.backward(loss)
            seconds = time.perf_counter() - began
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            return _Run(outputs, [*(o.detach() for o in trained), *gradients], seconds)


@dataclass(frozen=True)
class _Run:
    """Outputs with frozen statistics; in train mode, then outputs and gradients; seconds."""

    outputs: list[Tensor]
    trained: list[Tensor]
    seconds: float


def _example(model: nn.Module, example_input: ExampleInput) -> Tensor:
    if isinstance(example_input, Tensor):
        return example_input.detach()
    inputs = describe_batch(model, example_input)
    if inputs.kwargs or len(inputs.args) != 1 or not isinstance(inputs.args[0], TensorShape):
        raise UsageError("ranp.optimize takes networks of one tensor: give it, or its shape")
    shape = inputs.args[0]
    return torch.randn(shape.shape, dtype=shape.dtype, device=shape.device)


def _copy_model(model: nn.Module) -> nn.Module:
    copied = copy.deepcopy(model, remembered_results(model))
    copied.zero_grad(set_to_none=True)
    return copied


def _reroute(
    model: nn.Module, x: Tensor, layout: Layout, mode: Mode, cache: TimingCache
) -> _Candidate:
    """Return a copy whose convolutions work in a layout, each by its fastest route."""
    candidate = _copy_model(model)
    with preserve_state(candidate), training_mode(candidate, mode == "train"):
        folded = tuple(fold_norms(candidate, x)) if mode == "inference" else ()
        pairs = (
            preceding_convolutions(candidate, x, is_over_channels) if mode == "inference" else {}
        )
        names = {conv: name for name, conv in candidate.named_modules()}
        before_softmax = {softmax: names[conv] for softmax, conv in pairs.items()}
        shapes = _inputs_in_order(candidate, x)
    routes: dict[str, Route] = {}
    for name, shape in shapes.items():
        module = candidate.get_submodule(name)
        is_last = name == list(shapes)[-1]
        if not isinstance(module, nn.Conv3d):
            if is_last and layout == "channels-last":
                candidate = _end_in_softmax(candidate, module, before_softmax.get(name))
            continue
        if is_last and Geometry.of(module).is_pointwise:
            # A network returns the standard layout, and gets its gradient in it; a matrix product
            # goes from one layout to the other at no cost.
            routes[name] = Route("matmul", "matmul", "matmul")
        else:
            routes[name] = choose_route(module, shape, layout, mode, cache)
        attributes = {"route": routes[name], "layout": layout, "is_last": is_last}
        candidate = replace_module(
            candidate, module, rebuilt_as(RoutedConv3d, module, **attributes)
        )
    if layout == "channels-last":
        for module in list(candidate.modules()):
            if type(module) is nn.BatchNorm3d:
                exact = rebuilt_as(ChannelsLastBatchNorm3d, module)
                candidate = replace_module(candidate, module, exact)
        set_fast_functions(candidate)
    other = sum(route != Route() for route in routes.values())
    name = f"{layout}, {other} of {len(routes)} convolutions rerouted"
    name += f", {len(folded)} norms folded" if folded else ""
    return _Candidate(name, candidate, routes, folded)


def _end_in_softmax(model: nn.Module, softmax: nn.Module, before: str | None) -> nn.Module:
    """Compute a network's last softmax with the 1x1x1 convolution before it, or else by itself."""
    conv = None if before is None else model.get_submodule(before)
    if isinstance(conv, RoutedConv3d) and Geometry.of(conv).is_pointwise:
        replace_module(model, conv, rebuilt_as(PointwiseSoftmax, conv))
        return replace_module(model, softmax, nn.Identity())
    return replace_module(model, softmax, rebuilt_as(ChannelsLastSoftmax, softmax))


@torch.no_grad()
def _inputs_in_order(model: nn.Module, x: Tensor) -> dict[str, tuple[int, ...]]:
    """Return the input shapes of convolutions and softmaxes, in the order of their calls."""
    shapes: dict[str, tuple[int, ...]] = {}
    names = {module: name for name, module in model.named_modules()}

    def remember(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].dim() == 5:
            shapes.setdefault(names[module], tuple(args[0].shape))

    with ExitStack() as hooks:
        for module in names:
            if can_route(module) or is_over_channels(module):
                hooks.enter_context(module.register_forward_pre_hook(remember))
        model(x)
    return shapes


def _compared(name: str, run: _Run, expected: _Run) -> Trial:
    """Return a trial whose time is that of its first run."""
    trained = norm_difference(run.trained, expected.trained) if expected.trained else None
    return Trial(name, run.seconds, norm_difference(run.outputs, expected.outputs), trained)


def _timed(tried: Mapping[_Candidate, Trial], x: Tensor, mode: Mode) -> tuple[Trial, ...]:
    """Time all candidates in turns, unless the first run of the network given was long enough."""
    first = next(iter(tried.values())).seconds
    if first >= _LONG:
        return tuple(tried.values())
    actions: dict[str, Callable[[], None]] = {}
    with ExitStack() as stack:
        for candidate in tried:
            candidate.model.train(mode == "train")
            actions[candidate.name] = runner(candidate.model, x, mode)
            stack.enter_context(preserve_state(candidate.model))
        timings = time_in_turns(actions, 1 + repetitions(first), warm_up=False)
    return tuple(replace(trial, seconds=timings[trial.name].fastest) for trial in tried.values())
