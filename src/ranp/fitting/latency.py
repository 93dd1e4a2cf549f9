"""A budget of time: measured on the slim network itself, on this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from ranp.errors import InfeasibleError
from ranp.fitting.machine import check_fits
from ranp.fitting.search import BudgetSearch, Candidate, Found
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
_STEPS = 2  # towards the budget from one side; then the end tells whether it can be reached
_GUESSES = 5  # then the bracket is halved: times that jump mislead any guess
_LEAST_POWER = 0.3  # of the FLOPs that time is taken to follow
_FEWEST_TURNS = 5  # the spread of fewer says little
_NEAR = 0.1  # above the budget by what a small step mends
_FAR = 0.25  # off the budget by more than machines are noisy
_PRECISE = 0.017  # of a network whose time is about the budget: 0.012 for the mean of two
_MOST_SECONDS = 60.0  # for all measurements; then each takes the fewest turns that tell anything


def fit_latency(search: BudgetSearch, budget: Budget, found: Found, events: Events) -> Found:
    """Prune on from what keeps all other budgets until a training step is fast enough.

    Times are guessed from those measured, as powers of the FLOPs. They jump where a layer gets so
    thin that it is computed in another way, and they depend on where in memory a network happens
    to lie: so what counts for a choice is the mean of all its measurements, and one that is near
    the budget is measured at least twice. On a busy machine that would take minutes, so there is a
    limit, and the result says how well its time is known.

    Args:
        search: Search within the other budgets.
        budget: Budget of seconds, or of a share of the full network's.
        found: The least pruned choice that keeps the other budgets.
        events: Listener; called for each choice that was measured.

    Returns:
        A choice that keeps it, or the fastest that there is.
    """
    # A share of the time is kept by ratios: seconds are only shown then.
    repetitions = 5 if budget.of_full else 9
    stopwatch = _Stopwatch(search, found.best.alive, repetitions)
    full: float | None = stopwatch.first
    if found.best.sparsity:
        try:
            whole = search.costing.chooser.graph.all_alive()
            full = stopwatch.first * stopwatch.measure(whole, None).value
        except InfeasibleError:
            if budget.of_full:
                raise
            full = None
    budget = budget if full is None else budget.absolute(full)
    measured = {found.best.sparsity: [Ratio((0.0,) * repetitions)]}  # of the first to itself

    def at(sparsity: float) -> Candidate:
        """Return a choice with what it took in all measurements, of which this is one more."""
        candidate = search.candidate(sparsity)
        ratios = measured.setdefault(sparsity, [])
        ratios.append(stopwatch.measure(candidate.alive, budget))
        mean = statistics.fmean(ratio.value for ratio in ratios)
        candidate = _timed(candidate, stopwatch.first * mean, budget)
        events.on_trial(sparsity, candidate.figures)
        return candidate

    first = _timed(found.best, stopwatch.first, budget)
    events.on_trial(first.sparsity, first.figures)
    if first.figures["latency"] <= budget.limit:
        return Found(first, found.binding, budget, full)
    course = _Course(search, budget)
    tried = {first.sparsity: first}
    for number in range(_MOST_TRIALS):
        again = {sparsity for sparsity, ratios in measured.items() if len(ratios) > 1}
        sparsity = course.next_sparsity(tried.values(), again, number)
        if sparsity is None:
            break
        tried[sparsity] = at(sparsity)
    slow, fast = _bracket(tried.values(), budget)
    best = fast or slow
    turns = sum(len(ratio.logarithms) for ratio in measured[best.sparsity])
    return Found(best, "latency", budget, full, stopwatch.spread / math.sqrt(turns))


@dataclass(frozen=True)
class _Course:
    """Where to measure next to come to a budget of seconds: time is about a power of the FLOPs."""

    search: BudgetSearch
    budget: Budget

    def next_sparsity(
        self, tried: Collection[Candidate], again: Collection[float], number: int
    ) -> float | None:
        """Return the sparsity to measure after a number of trials; None if there is no need."""
        limit = self.budget.limit
        slow, fast = _bracket(tried, self.budget)
        if fast is None:
            end = self.search.costing.chooser.max_sparsity()
            is_near = slow.figures["latency"] <= (1 + _NEAR) * limit
            if slow.sparsity >= end:
                return end if is_near and end not in again else None
            if number >= (_GUESSES if is_near else _STEPS):
                return end
            least = slow.sparsity + (end - slow.sparsity) / 50
            return max(self._guess(tried, slow.sparsity, end), least)
        width = fast.sparsity - slow.sparsity
        if fast.figures["latency"] >= (1 - _CLOSE) * limit or width <= _FINEST:
            return fast.sparsity if fast.sparsity not in again else None
        if number >= _GUESSES:
            return slow.sparsity + width / 2
        guess = self._guess(tried, slow.sparsity, fast.sparsity)
        # Never close to an end, or it would take too long.
        return min(max(guess, slow.sparsity + width / 10), fast.sparsity - width / 10)

    def _guess(self, tried: Collection[Candidate], low: float, high: float) -> float:
        """Return a sparsity between two, from the time measured that is nearest to the wanted one.

        The power is that between it and the first: between near ones it would be noise.
        """
        wanted = (1 - _CLOSE / 2) * self.budget.limit
        first = min(tried, key=lambda each: each.sparsity)
        near = min(tried, key=lambda each: abs(math.log(each.figures["latency"] / wanted)))
        power = 1.0 if near is first else max(self._power(first, near), _LEAST_POWER)
        share = wanted / near.figures["latency"]
        return self._at_flops(self._flops(near.sparsity) * share ** (1 / power), low, high)

    def _power(self, one: Candidate, other: Candidate) -> float:
        times = math.log(one.figures["latency"] / other.figures["latency"])
        flops = math.log(self._flops(one.sparsity) / self._flops(other.sparsity))
        return times / flops if flops else 1.0

    def _at_flops(self, flops: float, low: float, high: float) -> float:
        while high - low > _FINEST / 4:
            middle = (low + high) / 2
            low, high = (low, middle) if self._flops(middle) <= flops else (middle, high)
        return high

    def _flops(self, sparsity: float) -> float:
        costing = self.search.costing
        alive = costing.chooser.choose(sparsity)
        return costing.figures(alive, self.search.step, ["flops"])["flops"]


class _Stopwatch:
    """Measures training steps, as if all at the time when the first network was measured.

    A machine's speed changes from one minute to the next, by more than a budget is to be met to.
    So every network takes turns with the first one, and what counts is how much faster it is.

    Attributes:
        first: Seconds of the first network.
    """

    def __init__(self, search: BudgetSearch, alive: Alive, repetitions: int) -> None:
        self._costing, self._step = search.costing, search.step
        self._first = self._build(alive)
        self._until = time.perf_counter() + _MOST_SECONDS
        self._ratios: list[Ratio] = []
        with self._as_trained(self._first):
            timing = measure_latency(
                {"first": self._first}, self._step.shape, repetitions=repetitions
            )
        self.first = timing["first"].median

    def measure(self, alive: Alive, budget: Budget | None) -> Ratio:
        """Measure how long a choice of channels takes against the first, if it fits.

        Less precisely where it is far from the budget.
        """

        def known(ratio: Ratio) -> bool:
            off = 0.0 if budget is None else abs(math.log(self.first * ratio.value / budget.limit))
            is_off = off > _CLOSE + 3 * ratio.error
            if len(ratio.logarithms) < _FEWEST_TURNS:
                return (is_off and off > _FAR) or ratio.error <= _PRECISE / 3
            return is_off or ratio.error <= _PRECISE

        network = self._build(alive)
        with self._as_trained(self._first, network):
            ratio = measure_ratio(
                network,
                self._first,
                self._step.shape,
                enough=known,
                most_seconds=(self._until - time.perf_counter()) / 2,  # others come after it
            )
        self._ratios.append(ratio)
        return ratio

    @property
    def spread(self) -> float:
        """Standard deviation of one turn's ratio, from all networks: few turns agree by chance."""
        logarithms = [ratio.logarithms for ratio in self._ratios]
        squares = sum(statistics.variance(each) * (len(each) - 1) for each in logarithms)
        return math.sqrt(squares / sum(len(each) - 1 for each in logarithms))

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


def _bracket(tried: Collection[Candidate], budget: Budget) -> tuple[Candidate, Candidate | None]:
    """Return the least pruned choice that is fast enough, after the most pruned one that is not.

    That is itself if it is the least pruned of all, and the most pruned of all if none is fast.
    """
    enough = [each for each in tried if each.figures["latency"] <= budget.limit]
    if not enough:
        return max(tried, key=lambda each: each.sparsity), None
    fast = min(enough, key=lambda each: each.sparsity)
    below = [each for each in tried if each.sparsity < fast.sparsity]
    return max(below, key=lambda each: each.sparsity, default=fast), fast


def _timed(candidate: Candidate, seconds: float, budget: Budget) -> Candidate:
    return replace(
        candidate,
        figures={**candidate.figures, "latency": seconds},
        shares={**candidate.shares, "latency": seconds / budget.limit},
    )
