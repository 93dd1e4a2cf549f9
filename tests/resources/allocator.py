"""What PyTorch's CPU allocator really hands out, from the profiler's records."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile


def peak_of(run):
    """What a function returns, and the most that was allocated at one time while it ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = run()
    events = recorded.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return result, peak


def step_peak(model, x, optimizer, loss=lambda output: output.mean()):
    """The peak of a training step with everything in it; a step before it makes the state."""

    def step():
        output = model(x)
        loss(output).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    states = [
        t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)
    ]
    resting = sum(t.nbytes for t in [*model.parameters(), *model.buffers(), x, *states])
    return resting + peak_of(step)[1]
