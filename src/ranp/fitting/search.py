"""The least pruning that keeps every budget, and what one could do instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ranp.errors import InfeasibleError, TraceError
from ranp.fitting.costing import Costing, Figures, shares
from ranp.fitting.training_step import TrainingStep, changes, is_part_of, variants
from ranp.graph import Alive
from ranp.pruning.coupling import REACHING
from ranp.pruning.search import DELTA, fill_budget
from ranp.resources.budgets import RESOURCES, Budget, describe

_SCAN = 6
_COARSE_SCAN = 2
_COARSE = 0.01


@dataclass(frozen=True)
class Candidate:
    """A choice of channels and what it costs.

    Attributes:
        sparsity: What was pruned.
        alive: The channels that live.
        figures: What it costs of every budgeted resource.
        shares: The same as shares of the budgets.
    """

    sparsity: float
    alive: Alive
    figures: Figures
    shares: Figures

    @property
    def keeps(self) -> bool:
        """Whether no budget is exceeded."""
        return self.worst <= 1

    @property
    def worst(self) -> float:
        """The largest share of a budget."""
        return max(self.shares.values(), default=0.0)

    @property
    def binding(self) -> str:
        """The resource that takes the largest share of its budget."""
        return max(self.shares, key=self.shares.__getitem__)


@dataclass(frozen=True)
class Found:
    """The least pruned choice that keeps the budgets, or the nearest to doing so.

    Attributes:
        best: The choice.
        binding: The budget that forbids to prune less; None if nothing is pruned.
    """

    best: Candidate
    binding: str | None


@dataclass(frozen=True)
class Alternative:
    """Another way to train, and how much pruning it asks for.

    Attributes:
        step: How it is trained.
        changes: What is different, for people.
        sparsity: The smallest, to 0.01, that keeps the budgets then.
        figures: What the slim network costs then.
    """

    step: TrainingStep
    changes: tuple[str, ...]
    sparsity: float
    figures: Figures

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        result = {**self.step.to_dict(), "changes": list(self.changes), "sparsity": self.sparsity}
        if "memory" in self.figures:
            result["predicted_peak_bytes"] = int(self.figures["memory"])
        return result


@dataclass(frozen=True)
class Tried:
    """A method, and how little pruning it takes to keep the budgets.

    Attributes:
        method: Name of the method.
        settings: Settings of the choice that networks are given by themselves: coupling, floor.
        sparsity: The smallest that keeps the budgets; None if none does.
        neurons: How many neurons are kept then.
        figures: What the slim network costs then.
    """

    method: str
    settings: Mapping[str, Any]
    sparsity: float | None = None
    neurons: int | None = None
    figures: Figures | None = None

    @property
    def label(self) -> str:
        """The method, with its coupling where that is not the paper's."""
        coupling = self.settings["coupling"]
        return self.method if coupling == "paper" else f"{self.method}, {coupling}"

    @classmethod
    def of(cls, costing: Costing, step: TrainingStep, found: Found | None) -> Tried:
        """Return what was found with a method."""
        choice = costing.chooser.choice
        about = (choice.method.name, {"coupling": choice.coupling, "floor": choice.floor})
        if found is None or not found.best.keeps:
            return cls(*about)
        best = found.best
        counted = costing.figures(best.alive, step, ("flops", "params"))
        neurons = sum(map(len, costing.chooser.graph.kept(best.alive).values()))
        return cls(*about, best.sparsity, neurons, {**counted, **best.figures})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        figures = None if self.figures is None else dict(self.figures)
        return {**vars(self), "settings": dict(self.settings), "figures": figures}


class DoesNotFit(InfeasibleError):
    """Not even the most that can be pruned keeps the budgets.

    Attributes:
        nearest: What comes nearest to keeping them.
        alternatives: Other ways to train that do.
    """

    def __init__(
        self, message: str, nearest: Candidate, alternatives: Sequence[Alternative] = ()
    ) -> None:
        super().__init__(message)
        self.nearest = nearest
        self.alternatives = tuple(alternatives)

    def to_dict(self) -> dict[str, Any]:
        """Return the failure as plain values, for JSON."""
        return {
            "feasible": False,
            "nearest": {
                "sparsity": self.nearest.sparsity,
                "figures": dict(self.nearest.figures),
                "binding": self.nearest.binding,
            },
            "alternatives": [each.to_dict() for each in self.alternatives],
        }


def least_pruned_of(
    costings: Sequence[Costing], step: TrainingStep, budgets: Sequence[Budget]
) -> tuple[Costing, Found, tuple[Tried, ...]]:
    """Find the method that keeps the most neurons within the budgets; the first of equals.

    Args:
        costings: Count and predict costs, one for each method.
        step: How the network is trained.
        budgets: On what can be counted or predicted.

    Returns:
        The costs of that method, what it found, and all that were tried, most neurons first. Where
        no method keeps the budgets it is the one that comes nearest.

    Raises:
        InfeasibleError: Every method empties a layer at any sparsity.
    """
    while True:
        best, tried = _try_all(costings, step, budgets)
        candidate = best[1].best
        if best[0].confirms(candidate.figures, candidate.alive, step):
            return *best, tried
        # Once more; what was computed is simulated now.


def _try_all(
    costings: Sequence[Costing], step: TrainingStep, budgets: Sequence[Budget]
) -> tuple[tuple[Costing, Found], tuple[Tried, ...]]:
    """Search with every method (see `least_pruned_of`)."""
    found: list[tuple[Costing, Found, Tried]] = []
    tried: list[Tried] = []
    refused: InfeasibleError | None = None
    for costing in costings:
        try:
            one = _filled(costing, step, budgets, least_pruned(costing, step, budgets))
        except InfeasibleError as error:
            refused = refused or error
            tried.append(Tried.of(costing, step, None))
            continue
        tried.append(Tried.of(costing, step, one))
        found.append((costing, one, tried[-1]))
        if one.binding is None:
            break  # nothing has to be pruned
    if not found:
        assert refused is not None
        raise refused
    costing, best, _ = max(
        found, key=lambda each: (each[2].neurons or 0, -max(each[1].best.worst, 1.0))
    )
    return (costing, best), tuple(sorted(tried, key=lambda each: -(each.neurons or 0)))


def _candidate(
    costing: Costing, step: TrainingStep, budgets: Sequence[Budget], sparsity: float, alive: Alive
) -> Candidate:
    figures = costing.figures(alive, step, [budget.resource for budget in budgets])
    return Candidate(sparsity, alive, figures, shares(figures, budgets, step))


def _filled(costing: Costing, step: TrainingStep, budgets: Sequence[Budget], found: Found) -> Found:
    """Give back what budgets have room for, by methods that rank no neurons, as `prune` does.

    Only where that is computed: hundreds of networks are tried.
    """
    resources = [budget.resource for budget in budgets]
    if found.binding is None or not found.best.keeps or not costing.is_computed(step, resources):
        return found
    at = partial(_candidate, costing, step, budgets, found.best.sparsity)
    alive = fill_budget(costing.chooser, found.best.sparsity, lambda alive: at(alive).worst)
    return replace(found, best=at(alive))


def least_pruned(
    costing: Costing,
    step: TrainingStep,
    budgets: Sequence[Budget],
    *,
    below: float | None = None,
    tolerance: float = DELTA,
    scan: int = _SCAN,
) -> Found:
    """Find the smallest sparsity whose slim network keeps every budget.

    Memory does not always fall when more is pruned: on a CPU, thin convolutions can run on kernels
    that take more of it. So some sparsities are tried all over the range, smallest first; between
    the last one that exceeds a budget and the first one that keeps all, the place is found by
    interpolation. Memory that is computed is not confirmed here (see `Costing.confirms`).

    Args:
        costing: Counts and predicts costs.
        step: How the network is trained.
        budgets: On what can be counted or predicted.
        below: The largest sparsity to try; the largest feasible one if not given.
        tolerance: How closely the sparsity is found.
        scan: How many sparsities are tried all over the range.
    """

    def at(sparsity: float) -> Candidate:
        alive = costing.chooser.choose(sparsity)
        return _candidate(costing, step, budgets, sparsity, alive)

    most = costing.chooser.max_sparsity() if below is None else below
    exceeding = nearest = at(0.0)
    if exceeding.keeps:
        return Found(exceeding, None)
    for number in range(1, scan + 1):
        found = at(most * number / scan)
        if found.keeps:
            break
        exceeding, nearest = found, min(nearest, found, key=lambda each: each.worst)
    else:
        return Found(nearest, nearest.binding)
    by_halves = False
    while (width := found.sparsity - exceeding.sparsity) > tolerance:
        middle = at(
            0.5 * (exceeding.sparsity + found.sparsity) if by_halves else _guess(exceeding, found)
        )
        if middle.keeps:
            found = middle
        else:
            exceeding = middle
        by_halves = found.sparsity - exceeding.sparsity > width / 2
    return Found(found, exceeding.binding)


def _guess(exceeding: Candidate, found: Candidate) -> float:
    """Return where the budget would be met if its share fell evenly on a logarithmic scale."""
    high, low = math.log(exceeding.worst), math.log(max(found.worst, 1e-9))
    share = min(max(high / max(high - low, 1e-9), 0.02), 0.98)
    return exceeding.sparsity + share * (found.sparsity - exceeding.sparsity)


def find_alternatives(
    costing: Costing, step: TrainingStep, budgets: Sequence[Budget], sparsity: float | None
) -> tuple[Alternative, ...]:
    """Return other ways to train within the budgets, the least pruned first.

    Those are left out that prune no less than what they go further than: one that changes less, or
    the way that was asked for.

    Args:
        costing: Counts and predicts costs.
        step: The way that was asked for.
        budgets: On what can be counted or predicted.
        sparsity: What the way that was asked for takes; None if it cannot be reached at all.
    """
    if not budgets:
        return ()
    most = costing.chooser.max_sparsity()
    asked = [] if sparsity is None else [sparsity]
    only_crops = all(budget.resource != "memory" for budget in budgets)
    found: list[Alternative] = []
    for other in variants(step, only_crops=only_crops):
        less = [each.sparsity for each in found if is_part_of(step, each.step, other)]
        below = min((known - _COARSE for known in (*asked, *less)), default=most)
        if below < 0:
            continue
        try:
            best = least_pruned(
                costing,
                other,
                budgets,
                below=below,
                tolerance=_COARSE,
                scan=_COARSE_SCAN,
            ).best
        except (RuntimeError, ValueError, TraceError):
            continue  # the network does not take volumes of this size
        if best.keeps:
            found.append(Alternative(other, changes(step, other), best.sparsity, best.figures))
    return tuple(sorted(found, key=lambda each: (each.sparsity, len(each.changes))))


def _other_coupling(costing: Costing, step: TrainingStep, budgets: Sequence[Budget]) -> list[str]:
    """Return the setting that keeps budgets where the method as it is empties a layer first."""
    chooser, (coupling, floor) = costing.chooser, REACHING
    if (chooser.choice.coupling, chooser.choice.floor) == REACHING:
        return []
    choice = replace(chooser.choice, coupling=coupling, floor=floor)
    other = replace(costing, chooser=replace(chooser, choice=choice))
    best = least_pruned(other, step, budgets, tolerance=_COARSE, scan=_COARSE_SCAN).best
    setting = f"coupling '{coupling}' with floor '{floor}' (sparsity {best.sparsity:.2f})"
    return [setting] if best.keeps else []


def does_not_fit(
    costing: Costing,
    step: TrainingStep,
    budgets: Sequence[Budget],
    nearest: Candidate,
    methods: Sequence[str],
) -> DoesNotFit:
    """Return an error that says how near one comes by the methods, and what would help.

    What would help against a budget of time is not known without measuring it.
    """
    worst = nearest.binding
    limit = next(b for b in budgets if b.resource == worst)
    predicted = [budget for budget in budgets if budget.resource != "latency"]
    shrinks = RESOURCES[worst].shrinks_with_input
    others = find_alternatives(costing, step, predicted, None) if shrinks else ()
    ways = [f"{' and '.join(each.changes)} (sparsity {each.sparsity:.2f})" for each in others[:3]]
    if not RESOURCES[worst].measured:
        ways = [*_other_coupling(costing, step, predicted), *ways]
    advice = f"these would: {'; '.join(ways)}" if ways else "nothing that was tried keeps it"
    return DoesNotFit(
        f"no network of {', '.join(methods)} keeps a {worst} budget of {limit} "
        f"with {step}: the nearest takes {describe(worst, nearest.figures[worst])} at sparsity "
        f"{nearest.sparsity:.4f}; {advice}",
        nearest,
        others,
    )
