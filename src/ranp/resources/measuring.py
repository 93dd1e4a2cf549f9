"""What a network really takes here: seconds, and bytes at the allocator.

Estimated figures are in `counting` and `training_memory`; these are measured ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from ranp.errors import UsageError
from ranp.graph.inputs import describe_inputs
from ranp.graph.operation import tensors_in


@dataclass(frozen=True)
class Timing:
    """Seconds of each run of an action, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one: a disturbance now and then does not move it."""
        return median(self.seconds)

    @property
    def fastest(self) -> float:
        """What it takes when nothing else happens."""
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """Median distance from the median, as a share of it: how far the figure can be trusted."""
        return median(abs(s - self.median) for s in self.seconds) / self.median


@dataclass(frozen=True)
class Measured:
    """Time and memory of one network.

    Attributes:
        seconds: Median time.
        spread: Median distance from it, as a share of it.
        times: All times, in order.
        peak_bytes: The most that was allocated at one time, over what was allocated before;
            parameters and the batch are not in it.
    """

    seconds: float
    spread: float
    times: tuple[float, ...]
    peak_bytes: int


def time_in_turns(
    actions: Mapping[str, Callable[[], object]],
    repetitions: int,
    clock: Callable[[], float] = time.perf_counter,
    *,
    warm_up: bool = True,
) -> dict[str, Timing]:
    """Time several actions in turns, so that a busy machine treats all alike.

    Args:
        actions: Actions by name.
        repetitions: How often each is timed.
        clock: Seconds since some time; `time.process_time` does not count what others do.
        warm_up: Whether each is done once before anything is timed.
    """
    for act in actions.values() if warm_up else ():
        act()
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repetitions):
        for name, act in actions.items():
            start = clock()
            act()
            times[name].append(clock() - start)
    return {name: Timing(tuple(seconds)) for name, seconds in times.items()}


def measure_in_turns(
    actions: Mapping[str, Callable[[], object]], repetitions: int
) -> dict[str, Measured]:
    """Measure time and memory of several actions in turns.

    One more run of each warms up, and is the one whose memory is measured.
    """
    peaks = {name: peak_bytes(act) for name, act in actions.items()}
    timings = time_in_turns(actions, repetitions, warm_up=False)
    return {
        name: Measured(timing.median, timing.spread, timing.seconds, peaks[name])
        for name, timing in timings.items()
    }


def mean_of(output: Any) -> Tensor:
    """Return a scalar that every output takes part in."""
    parts = [t.float().mean() for t in tensors_in(output) if t.is_floating_point()]
    if not parts:
        raise UsageError("the network's output must hold a tensor of floats, got none")
    return torch.stack(parts).sum()


def zero_label_cross_entropy(output: Tensor) -> Tensor:
    """Return the cross-entropy against labels of zeros: it takes as much as any labels do."""
    labels = output.new_zeros((output.shape[0], *output.shape[2:]), dtype=torch.int64)
    return F.cross_entropy(output, labels)


def random_batch(model: nn.Module, shape: Sequence[int]) -> Tensor:
    """Return random numbers of a shape, with the device and dtype of a model's parameters."""
    like = describe_inputs(model, shape).args[0]
    return torch.randn(like.shape, dtype=like.dtype, device=like.device)


def train_step(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> None:
    """Forward and backward; no gradients are left behind."""
    model.zero_grad(set_to_none=True)
    torch.autograd.backward(loss(model))
    model.zero_grad(set_to_none=True)


def peak_bytes(act: Callable[[], object]) -> int:
    """Return the most that an action allocates at one time over what was allocated before it.

    Follows every allocation, workspaces of kernels included, by the profiler's records.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        act()
    assert recorded.profiler is not None and recorded.profiler.kineto_results is not None
    events = recorded.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak
