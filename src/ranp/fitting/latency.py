"""A budget of time: measured on the slim network itself, on this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from ranp.fitting.budgets import Budget
from ranp.fitting.costing import Costing, shares
from ranp.fitting.machine import require
from ranp.fitting.search import Candidate, Found
from ranp.fitting.training_step import TrainingStep
from ranp.graph import Alive
from ranp.recompute import checkpointed
from ranp.resources.autocast import DTYPES
from ranp.slimming import slim_model

_CLOSE = 0.04  # a network that takes this much less than the budget is near enough
_FINEST = 2e-3
_MOST_TRIALS = 14


def fit_latency(
    costing: Costing,
    step: TrainingStep,
    budget: Budget,
    others: Sequence[Budget],
    found: Found,
) -> Found:
    """Prunes on from what keeps all other budgets until a training step is fast enough.

    Times are guessed by interpolation between those measured, on a logarithmic scale; the last one
    is measured twice, so that it is not kept by a lucky run alone.

    Args:
        costing: Knows what choices cost.
        step: How the network is trained.
        budget: Of seconds.
        others: The other budgets.
        found: The least pruned choice that keeps the other budgets.

    Returns:
        A choice that keeps it, or the fastest that there is.
    """

    def at(sparsity: float) -> Candidate:
        alive = costing.chooser.choose(sparsity)
        figures = costing.figures(alive, step, [other.resource for other in others])
        candidate = Candidate(sparsity, alive, figures, shares(figures, others, step))
        return _timed(candidate, seconds_of(costing, alive, step), budget)

    slow = at(found.best.sparsity)
    if slow.figures["latency"] <= budget.limit:
        return Found(slow, found.binding)
    fast = at(costing.chooser.max_sparsity())
    if fast.figures["latency"] > budget.limit:
        return Found(fast, "latency")
    for _ in range(_MOST_TRIALS):
        near = fast.figures["latency"] >= (1 - _CLOSE) * budget.limit
        if near or fast.sparsity - slow.sparsity <= _FINEST:
            again = seconds_of(costing, fast.alive, step)
            if again <= budget.limit:
                break
            slow, fast = _timed(fast, again, budget), at(costing.chooser.max_sparsity())
        trial = at(_between(slow, fast, (1 - _CLOSE / 2) * budget.limit))
        if trial.figures["latency"] <= budget.limit:
            fast = trial
        else:
            slow = trial
    return Found(fast, "latency")


def seconds_of(costing: Costing, alive: Alive, step: TrainingStep) -> float:
    """Measures a training step of a slim network, after making sure that it fits."""
    from ranp.resources.latency import measure_latency

    chooser = costing.chooser
    device = next(chooser.model.parameters()).device
    require(
        costing.memory(alive, replace(step, device="cpu" if device.type == "cpu" else "cuda")).peak,
        device,
        f"measuring a training step with {step}",
        "give a smaller batch or input, or no budget of latency",
    )
    slim = slim_model(chooser.model, chooser.graph, alive, init="fresh", seed=chooser.seed)
    low = step.precision != "32"
    with (
        checkpointed(slim) if step.recompute else torch.enable_grad(),
        torch.autocast(device.type, dtype=DTYPES[step.precision], enabled=low),
    ):
        return measure_latency(slim, step.shape, mode="train")


def _timed(candidate: Candidate, seconds: float, budget: Budget) -> Candidate:
    return replace(
        candidate,
        figures={**candidate.figures, "latency": seconds},
        shares={**candidate.shares, "latency": seconds / budget.limit},
    )


def _between(slow: Candidate, fast: Candidate, seconds: float) -> float:
    """Where one would expect so many seconds; never close to an end, or it would take for ever."""
    high, low = (math.log(each.figures["latency"]) for each in (slow, fast))
    share = (high - math.log(seconds)) / max(high - low, 1e-9)
    share = min(max(share, 0.1), 0.9)
    return slow.sparsity + share * (fast.sparsity - slow.sparsity)
