"""Latency as a resource: what a network, and each of its layers, takes on this machine."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ranp.errors import check_one_of
from ranp.graph import ChannelGraph, unwrap
from ranp.graph.channel_graph import slim_shape
from ranp.graph.surgery import preserve_state, training_mode
from ranp.resources.machine import describe_machine
from ranp.resources.measuring import (
    Timing,
    mean_of,
    random_batch,
    time_in_turns,
    train_step,
)
from ranp.resources.timing_cache import TimingCache

Mode = Literal["train", "inference"]
MODES: tuple[Mode, ...] = get_args(Mode)
_LAYER_REPETITIONS = 3
_FEWEST_TURNS = 3  # two may agree by chance


def measure_latency(
    models: Mapping[str, nn.Module],
    shape: tuple[int, ...],
    *,
    mode: Mode = "train",
    repetitions: int = 5,
    warm_up: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Measure how long networks take for a batch, in turns, each on its own device.

    Args:
        models: Any modules that take one tensor, by name; they are given back as they were.
        shape: Shape of the batch.
        mode: "train" is forward and backward in train mode, "inference" a forward in eval mode
            without gradients.
        repetitions: Timed runs of each.
        warm_up: Whether there is one more before them.
        clock: Clock to read before and after; `time.process_time` leaves out what other processes
            do, and adds up threads.
    """
    actions: dict[str, Callable[[], None]] = {}
    with ExitStack() as stack:
        for name, model in models.items():
            model = unwrap(model)
            stack.enter_context(preserve_state(model))
            stack.enter_context(training_mode(model, mode == "train"))
            actions[name] = runner(model, random_batch(model, shape), mode)
        return time_in_turns(actions, repetitions, clock, warm_up=warm_up)


@dataclass(frozen=True)
class Ratio:
    """How many times as long one network takes as another: the logarithm of each turn's ratio."""

    logarithms: tuple[float, ...]

    @property
    def value(self) -> float:
        """The geometric mean over all turns."""
        return math.exp(statistics.fmean(self.logarithms))

    @property
    def error(self) -> float:
        """The standard error of that mean, as a share of it."""
        return statistics.stdev(self.logarithms) / math.sqrt(len(self.logarithms))


def measure_ratio(
    this: nn.Module,
    reference: nn.Module,
    shape: tuple[int, ...],
    *,
    mode: Mode = "train",
    enough: Callable[[Ratio], bool],
    most_seconds: float = 60.0,
) -> Ratio:
    """Measure how many times as long a network takes as another.

    The speed of a machine changes from one moment to the next, by more than networks that one
    would like to tell apart. Both take turns, so that it changes for both, and go on until it is
    known well enough.

    Args:
        this: A network.
        reference: The other one, on the same device.
        shape: Shape of the batch.
        mode: "train" or "inference".
        enough: Whether a ratio is known well enough; asked after every turn but the first few.
        most_seconds: After so much time, and the first few turns, it is taken as it is.
    """
    models = {"this": this, "reference": reference}
    logarithms: list[float] = []
    until = time.perf_counter() + most_seconds
    while True:
        took = measure_latency(models, shape, mode=mode, repetitions=1, warm_up=not logarithms)
        turns = zip(took["this"].seconds, took["reference"].seconds, strict=True)
        logarithms += [math.log(one / other) for one, other in turns]
        if len(logarithms) < _FEWEST_TURNS:
            continue
        ratio = Ratio(tuple(logarithms))
        if enough(ratio) or time.perf_counter() > until:
            return ratio


def latency_table(
    model: nn.Module, graph: ChannelGraph, *, mode: Mode = "train", cache: TimingCache | None = None
) -> dict[str, float]:
    """Measure what each layer takes, alone, on random numbers of the shape that it was traced with.

    Times are cached by device, shapes and versions, in the user's cache if none is given.

    Returns:
        Seconds by layer, all its calls together; 0 for layers that are no modules of their own
        (raw parameters).
    """
    model = unwrap(model)
    cache = TimingCache() if cache is None else cache
    modules = dict(model.named_modules())
    table = dict.fromkeys(graph.layers, 0.0)
    for call in graph.calls:
        if call.name in table:
            module = modules[call.name]
            shape = slim_shape(call.inputs, graph.all_alive())
            device = next(module.parameters()).device
            what = {
                "work": f"layer, {mode}",
                "layer": repr(module),
                "shape": list(shape),
                **describe_machine(device),
            }
            measured = cache.get(what, partial(_layer_seconds, module, shape, mode))
            table[call.name] += measured["layer"]
    return table


@torch.random.fork_rng()
def _layer_seconds(module: nn.Module, shape: tuple[int, ...], mode: Mode) -> dict[str, float]:
    alone = copy.deepcopy(module).train(mode == "train")
    x = random_batch(alone, shape).requires_grad_(mode == "train")
    act = runner(alone, x, mode)
    return {"layer": time_in_turns({"layer": act}, _LAYER_REPETITIONS)["layer"].fastest}


def runner(
    model: nn.Module, x: Tensor, mode: Mode, loss: Callable[[Any], Tensor] | None = None
) -> Callable[[], None]:
    """Return what is timed: one training step (forward and backward), or one forward.

    It ends when the device has done its work. The model must already be in the right mode; the
    loss is the mean of all outputs if not given.
    """
    check_one_of("mode", mode, MODES)

    def train() -> None:
        train_step(model, lambda m: (loss or mean_of)(m(x)))
        _wait_for(x.device)

    def infer() -> None:
        with torch.inference_mode():
            model(x)
        _wait_for(x.device)

    return train if mode == "train" else infer


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
