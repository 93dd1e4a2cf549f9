"""What a training step really takes here: seconds, and bytes at the allocator.

Estimated figures are in `counting` and `training_memory`; these are measured ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class MeasuredStep:
    """A training step as measured.

    Attributes:
        seconds: Median time of forward and backward.
        peak_bytes: The most that was allocated at one time during the step, over what was
            allocated before it (parameters and the batch are not in it).
    """

    seconds: float
    peak_bytes: int


def measure_steps(
    models: Mapping[str, nn.Module], loss: Callable[[nn.Module], Tensor], repetitions: int = 3
) -> dict[str, MeasuredStep]:
    """Measures several networks side by side, in turns, so that a busy machine treats all alike.

    Args:
        models: The networks by name; gradients are cleared.
        loss: Forward to a scalar.
        repetitions: Timed steps of each; one more before them warms up, and is the one whose
            memory is measured.
    """
    peaks = {name: _peak_bytes(partial(_step, model, loss)) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(repetitions):
        for name, model in models.items():
            start = time.perf_counter()
            _step(model, loss)
            times[name].append(time.perf_counter() - start)
    return {name: MeasuredStep(median(times[name]), peaks[name]) for name in models}


def _step(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> None:
    model.zero_grad(set_to_none=True)
    torch.autograd.backward(loss(model))
    model.zero_grad(set_to_none=True)


def _peak_bytes(step: Callable[[], None]) -> int:
    """Follows every allocation, workspaces of kernels included, by the profiler's records."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    assert recorded.profiler is not None and recorded.profiler.kineto_results is not None
    events = recorded.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak
