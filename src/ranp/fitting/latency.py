"""A budget of time: measured on the slim network itself, on this machine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
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
_MOST_TRIALS = 16


def fit_latency(
    costing: Costing,
    step: TrainingStep,
    budget: Budget,
    others: Sequence[Budget],
    found: Found,
) -> Found:
    """Prunes on from what keeps all other budgets until a training step is fast enough.

    Times are guessed by interpolation between those measured, on a logarithmic scale. They are
    noisy, and they jump where a layer gets so thin that it is computed in another way: so what
    counts for a choice is the mean of all its measurements, and the one that is kept has been
    measured at least twice.

    Args:
        costing: Knows what choices cost.
        step: How the network is trained.
        budget: Of seconds.
        others: The other budgets.
        found: The least pruned choice that keeps the other budgets.

    Returns:
        A choice that keeps it, or the fastest that there is.
    """
    seconds: dict[float, list[float]] = {}

    def at(sparsity: float) -> Candidate:
        """A choice with what it took in all measurements, of which this is one more."""
        alive = costing.chooser.choose(sparsity)
        seconds.setdefault(sparsity, []).append(seconds_of(costing, alive, step))
        figures = costing.figures(alive, step, [other.resource for other in others])
        candidate = Candidate(sparsity, alive, figures, shares(figures, others, step))
        return _timed(candidate, statistics.fmean(seconds[sparsity]), budget)

    first = at(found.best.sparsity)
    if first.figures["latency"] <= budget.limit:
        return Found(first, found.binding)
    last = at(costing.chooser.max_sparsity())
    tried = {each.sparsity: each for each in (first, last)}
    for _ in range(_MOST_TRIALS):
        bracket = _bracket(tried.values(), budget)
        if bracket is None:
            break
        slow, fast = bracket
        near = fast.figures["latency"] >= (1 - _CLOSE) * budget.limit
        if near or fast.sparsity - slow.sparsity <= _FINEST:
            if len(seconds[fast.sparsity]) > 1:
                break
            sparsity = fast.sparsity
        else:
            sparsity = _between(slow, fast, (1 - _CLOSE / 2) * budget.limit)
        tried[sparsity] = at(sparsity)
    bracket = _bracket(tried.values(), budget)
    return Found(tried[last.sparsity] if bracket is None else bracket[1], "latency")


def _bracket(tried: Collection[Candidate], budget: Budget) -> tuple[Candidate, Candidate] | None:
    """The least pruned choice that is fast enough, after the most pruned below it that is not.

    None if no choice is fast enough.
    """
    enough = [each for each in tried if each.figures["latency"] <= budget.limit]
    if not enough:
        return None
    fast = min(enough, key=lambda each: each.sparsity)
    slower = [each for each in tried if each.sparsity < fast.sparsity]
    return max(slower, key=lambda each: each.sparsity), fast


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
