"""A budget of time: measured on the slim network itself, on this machine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from ranp.errors import InfeasibleError
from ranp.fitting.costing import Costing, shares
from ranp.fitting.machine import check_fits
from ranp.fitting.search import Candidate, Found
from ranp.fitting.training_step import TrainingStep
from ranp.graph import Alive
from ranp.pipeline import Events
from ranp.recompute import checkpointed
from ranp.resources.autocast import DTYPES
from ranp.resources.budgets import Budget
from ranp.resources.latency import Ratio, measure_latency, measure_ratio
from ranp.slimming import slim_model

_CLOSE = 0.04  # a network that takes this much less than the budget is near enough
_FINEST = 2e-3
_MOST_TRIALS = 16
_PRECISE = 0.012  # of a network whose time is about the budget


@dataclass(frozen=True)
class FoundInTime(Found):
    """What keeps a budget of time, or the fastest that there is.

    Attributes:
        budget: The budget in seconds.
        full: Seconds of the full network; None if it is too large to be measured here.
    """

    budget: Budget
    full: float | None


def fit_latency(
    costing: Costing,
    step: TrainingStep,
    budget: Budget,
    others: Sequence[Budget],
    found: Found,
    events: Events,
) -> FoundInTime:
    """Prune on from what keeps all other budgets until a training step is fast enough.

    Times are guessed by interpolation between those measured, on a logarithmic scale. They jump
    where a layer gets so thin that it is computed in another way, and they depend on where in
    memory a network happens to lie: so what counts for a choice is the mean of all its
    measurements, and one that is near the budget is measured at least twice.

    Args:
        costing: Counts and predicts costs.
        step: How the network is trained.
        budget: Budget of seconds, or of a share of the full network's.
        others: The other budgets.
        found: The least pruned choice that keeps the other budgets.
        events: Listener; told of each choice that was measured.

    Returns:
        A choice that keeps it, or the fastest that there is.
    """
    stopwatch = _Stopwatch(costing, step, found.best.alive)
    full: float | None = stopwatch.first
    if found.best.sparsity:
        try:
            full = stopwatch.seconds(costing.chooser.graph.all_alive(), None)
        except InfeasibleError:
            if budget.of_full:
                raise
            full = None
    budget = budget if full is None else budget.absolute(full)
    seconds: dict[float, list[float]] = {found.best.sparsity: [stopwatch.first]}

    def at(sparsity: float) -> Candidate:
        """Return a choice with what it took in all measurements, of which this is one more."""
        alive = costing.chooser.choose(sparsity)
        seconds.setdefault(sparsity, []).append(stopwatch.seconds(alive, budget))
        figures = costing.figures(alive, step, [other.resource for other in others])
        candidate = Candidate(sparsity, alive, figures, shares(figures, others, step))
        candidate = _timed(candidate, statistics.fmean(seconds[sparsity]), budget)
        events.on_trial(sparsity, candidate.figures)
        return candidate

    first = _timed(found.best, stopwatch.first, budget)
    events.on_trial(first.sparsity, first.figures)
    if first.figures["latency"] <= budget.limit:
        return FoundInTime(first, found.binding, budget, full)
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
    best = tried[last.sparsity] if bracket is None else bracket[1]
    return FoundInTime(best, "latency", budget, full)


class _Stopwatch:
    """Measures training steps, as if all at the time when the first network was measured.

    A machine's speed changes from one minute to the next, by more than a budget is to be met to.
    So every network takes turns with the first one, and what counts is how much faster it is.

    Attributes:
        first: Seconds of the first network.
    """

    def __init__(self, costing: Costing, step: TrainingStep, alive: Alive) -> None:
        self._costing, self._step = costing, step
        self._first = self._build(alive)
        with self._as_trained(self._first):
            timing = measure_latency({"first": self._first}, step.shape, repetitions=9)
        self.first = timing["first"].median

    def seconds(self, alive: Alive, budget: Budget | None) -> float:
        """Measure a choice of channels, after making sure that it fits.

        Args:
            alive: Living channels.
            budget: Far from this it is not measured as precisely as near to it.
        """

        def known(ratio: Ratio) -> bool:
            if ratio.error <= _PRECISE:
                return True
            if budget is None:
                return False
            off = abs(math.log(self.first * ratio.value / budget.limit))
            return off > _CLOSE + 3 * ratio.error

        network = self._build(alive)
        with self._as_trained(self._first, network):
            ratio = measure_ratio(network, self._first, self._step.shape, enough=known)
        return self.first * ratio.value

    def _build(self, alive: Alive) -> nn.Module:
        chooser, step = self._costing.chooser, self._step
        device = next(chooser.model.parameters()).device
        here = replace(step, device="cpu" if device.type == "cpu" else "cuda")
        check_fits(
            self._costing.memory(alive, here).peak,
            device,
            f"measuring a training step with {step}",
            "give a smaller batch or input, or no budget of latency",
        )
        return slim_model(
            chooser.model, chooser.graph, alive, init="fresh", seed=chooser.choice.seed
        )

    @contextmanager
    def _as_trained(self, *models: nn.Module) -> Iterator[None]:
        """Use the precision and the recomputation that the networks are trained with."""
        step = self._step
        device = next(self._first.parameters()).device
        low = step.precision != "32"
        with ExitStack() as stack:
            for model in models if step.recompute else ():
                stack.enter_context(checkpointed(model))
            stack.enter_context(
                torch.autocast(device.type, dtype=DTYPES[step.precision], enabled=low)
            )
            yield


def _bracket(tried: Collection[Candidate], budget: Budget) -> tuple[Candidate, Candidate] | None:
    """Return the least pruned choice that is fast enough, after the most pruned one that is not.

    That is itself if it is the least pruned of all. None if no choice is fast enough.
    """
    enough = [each for each in tried if each.figures["latency"] <= budget.limit]
    if not enough:
        return None
    fast = min(enough, key=lambda each: each.sparsity)
    below = [each for each in tried if each.sparsity < fast.sparsity]
    return max(below, key=lambda each: each.sparsity, default=fast), fast


def _timed(candidate: Candidate, seconds: float, budget: Budget) -> Candidate:
    return replace(
        candidate,
        figures={**candidate.figures, "latency": seconds},
        shares={**candidate.shares, "latency": seconds / budget.limit},
    )


def _between(slow: Candidate, fast: Candidate, seconds: float) -> float:
    """Return where to expect so many seconds; never close to an end, or it would take too long."""
    high, low = (math.log(each.figures["latency"]) for each in (slow, fast))
    share = (high - math.log(seconds)) / max(high - low, 1e-9)
    share = min(max(share, 0.1), 0.9)
    return slow.sparsity + share * (fast.sparsity - slow.sparsity)
