"""The least pruning that keeps every budget, and what one could do instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ranp.errors import InfeasibleError, TraceError, UsageError
from ranp.fitting.costing import CPU_MARGIN, Costing, Figures
from ranp.fitting.training_step import TrainingStep, changes, is_part_of, variants
from ranp.graph import Alive
from ranp.pruning.coupling import REACHING
from ranp.pruning.search import DELTA, fill_budget
from ranp.resources.budgets import RESOURCES, Budget, describe

_SCAN = 6
_COARSE_SCAN = 2
_COARSE = 0.01
_SHOWN_WAYS = 3
_STARVED = 0.25
"""A layer that keeps no more of its neurons than this is starved."""


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
        binding: The budget that does not allow less pruning; None if nothing is pruned.
        time_budget: The budget of time in seconds, if there is one.
        full_seconds: What the full network takes then; None if it is too large to be measured here.
        time_error: Standard error of the choice's measured time, as a share of it.
    """

    best: Candidate
    binding: str | None
    time_budget: Budget | None = None
    full_seconds: float | None = None
    time_error: float = 0.0


@dataclass(frozen=True)
class Alternative:
    """Another way to train, and how much pruning it needs.

    Attributes:
        step: How it is trained.
        changes: What is different, as text.
        sparsity: The smallest sparsity, to 0.01, that keeps the budgets in this way.
        figures: What the slim network then costs.
    """

    step: TrainingStep
    changes: tuple[str, ...]
    sparsity: float
    figures: Figures

    def __str__(self) -> str:
        return f"{' and '.join(self.changes)} (sparsity {self.sparsity:.2f})"

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
        return self.method if coupling == "paper" else f"{self.method}, coupling {coupling}"

    @classmethod
    def of(cls, search: BudgetSearch, found: Found | None) -> Tried:
        """Return what was found with a method."""
        costing, choice = search.costing, search.costing.chooser.choice
        about = (choice.method.name, {"coupling": choice.coupling, "floor": choice.floor})
        if found is None or not found.best.keeps:
            return cls(*about)
        best = found.best
        counted = costing.figures(best.alive, search.step, ("flops", "params"))
        neurons = sum(map(len, costing.chooser.graph.kept(best.alive).values()))
        return cls(*about, best.sparsity, neurons, {**counted, **best.figures})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        figures = None if self.figures is None else dict(self.figures)
        return {**vars(self), "settings": dict(self.settings), "figures": figures}


class DoesNotFit(InfeasibleError):
    """No pruned network keeps the budgets.

    Attributes:
        nearest: The network that comes closest to keeping them.
        alternatives: Other ways to train that keep them.
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
    searches: Sequence[BudgetSearch],
) -> tuple[BudgetSearch, Found, tuple[Tried, ...]]:
    """Find the method that keeps the most neurons within the budgets; the first of equals.

    Returns:
        The search with that method, what it found, and all that were tried, most neurons first.
        Where no method keeps the budgets it is the one that comes nearest.

    Raises:
        InfeasibleError: Every method empties a layer at any sparsity.
    """
    results: list[tuple[BudgetSearch, Found, Tried]] = []
    tried: list[Tried] = []
    refused: InfeasibleError | None = None
    for search in searches:
        try:
            found = search.fill(search.least_pruned())
        except InfeasibleError as error:
            refused = refused or error
            tried.append(Tried.of(search, None))
            continue
        tried.append(Tried.of(search, found))
        results.append((search, found, tried[-1]))
        if found.binding is None:
            break  # nothing has to be pruned
    if not results:
        assert refused is not None
        raise refused
    search, found, _ = max(
        results, key=lambda each: (each[2].neurons or 0, -max(each[1].best.worst, 1.0))
    )
    if not search.costing.confirms(found.best.figures, found.best.alive, search.step):
        return least_pruned_of(searches)  # what was computed is simulated now
    return search, found, tuple(sorted(tried, key=lambda each: -(each.neurons or 0)))


@dataclass(frozen=True)
class BudgetSearch:
    """Searches for the least pruning by a method that keeps budgets.

    Attributes:
        costing: Counts and predicts what the method's choices cost.
        step: How the network is trained.
        budgets: Budgets on what can be counted or predicted.
    """

    costing: Costing
    step: TrainingStep
    budgets: tuple[Budget, ...]

    def candidate(self, sparsity: float, alive: Alive | None = None) -> Candidate:
        """Return the method's choice at a sparsity, or other channels, and what they cost.

        On a CPU a little memory is left over, for what no tensor accounts for; for CUDA the
        prediction has an allowance already.
        """
        alive = self.costing.chooser.choose(sparsity) if alive is None else alive
        figures = self.costing.figures(alive, self.step, [b.resource for b in self.budgets])
        margin = {"memory": CPU_MARGIN if self.step.device == "cpu" else 0.0}
        shares = {
            b.resource: figures[b.resource] / (b.limit * (1 - margin.get(b.resource, 0.0)))
            for b in self.budgets
            if b.resource in figures
        }
        return Candidate(sparsity, alive, figures, shares)

    def least_pruned(
        self, *, below: float | None = None, tolerance: float = DELTA, scan: int = _SCAN
    ) -> Found:
        """Find the smallest sparsity whose slim network keeps every budget.

        Memory does not always fall when more is pruned: on a CPU, thin convolutions can run on
        kernels that take more of it. So some sparsities are tried all over the range, smallest
        first; between the last one that exceeds a budget and the first one that keeps all, the
        place is found by interpolation. Memory that is computed is not confirmed here (see
        `Costing.confirms`).

        Args:
            below: Largest sparsity to try; the largest feasible one if not given.
            tolerance: How closely the sparsity is found.
            scan: How many sparsities are tried all over the range.
        """
        most = self.costing.chooser.max_sparsity() if below is None else below
        exceeding = nearest = self.candidate(0.0)
        if exceeding.keeps:
            return Found(exceeding, None)
        for number in range(1, scan + 1):
            found = self.candidate(most * number / scan)
            if found.keeps:
                break
            exceeding, nearest = found, min(nearest, found, key=lambda each: each.worst)
        else:
            return Found(nearest, nearest.binding)
        by_halves = False
        while (width := found.sparsity - exceeding.sparsity) > tolerance:
            half = 0.5 * (exceeding.sparsity + found.sparsity)
            middle = self.candidate(half if by_halves else _guess(exceeding, found))
            if middle.keeps:
                found = middle
            else:
                exceeding = middle
            by_halves = found.sparsity - exceeding.sparsity > width / 2
        return Found(found, exceeding.binding)

    def fill(self, found: Found) -> Found:
        """Give back what budgets have room for, by methods that rank no neurons, as `prune` does.

        Only where that is computed: hundreds of networks are tried.
        """
        resources = [budget.resource for budget in self.budgets]
        is_computed = self.costing.is_computed(self.step, resources)
        if found.binding is None or not found.best.keeps or not is_computed:
            return found
        at = partial(self.candidate, found.best.sparsity)
        chooser, sparsity = self.costing.chooser, found.best.sparsity
        alive = fill_budget(chooser, sparsity, lambda alive: at(alive).worst)
        return replace(found, best=at(alive))

    def alternatives(self, sparsity: float | None) -> tuple[Alternative, ...]:
        """Return other ways to train within the budgets, the least pruned first.

        Those are left out that prune no less than what they go further than: one that changes
        less, or the way that was asked for, which takes `sparsity` (None if it is out of reach).
        """
        if not self.budgets:
            return ()
        most = self.costing.chooser.max_sparsity()
        asked = [] if sparsity is None else [sparsity]
        only_crops = all(budget.resource != "memory" for budget in self.budgets)
        found: list[Alternative] = []
        for other in variants(self.step, only_crops=only_crops):
            less = [each.sparsity for each in found if is_part_of(self.step, each.step, other)]
            below = min((known - _COARSE for known in (*asked, *less)), default=most)
            if below < 0:
                continue
            try:
                best = replace(self, step=other)._search_coarsely(below=below)
            except (RuntimeError, ValueError, TraceError, UsageError):
                continue  # the network, or the user's own loss, does not take volumes of this size
            if best.keeps:
                changed = changes(self.step, other)
                found.append(Alternative(other, changed, best.sparsity, best.figures))
        return tuple(sorted(found, key=lambda each: (each.sparsity, len(each.changes))))

    def starved(self, best: Candidate, others: Sequence[Alternative]) -> str | None:
        """Return that little is left because most of the memory is out of reach of pruning.

        None where it is less than half of the budget, or no layer is left with a few neurons only.
        """
        limit = next(b.limit for b in self.budgets if b.resource == "memory")
        chooser = self.costing.chooser
        kept = chooser.graph.kept(best.alive)
        shares = {name: len(kept[name]) / len(each) for name, each in chooser.graph.layers.items()}
        least = min(shares, key=shares.__getitem__)
        smallest = self.costing.memory(chooser.choose(chooser.max_sparsity()), self.step)
        stays = min(smallest.peak, best.figures["memory"])
        if shares[least] > _STARVED or stays < limit / 2:
            return None
        held = [each.module or "the loss and between layers" for each in smallest.holders[:2]]
        ways = "; ".join(map(str, others[:_SHOWN_WAYS]))
        return (
            f"{100 * stays / limit:.0f} % of the memory budget ({describe('memory', stays)} of "
            f"{describe('memory', limit)}) stay however much is pruned, most of it in "
            f"{', and in '.join(held)}, so layers are left with as little as {len(kept[least])} of "
            f"{len(chooser.graph.layers[least])} channels ('{least}'); "
            + (f"less is pruned with {ways}" if ways else "give more memory")
        )

    def _search_coarsely(self, below: float | None = None) -> Candidate:
        return self.least_pruned(below=below, tolerance=_COARSE, scan=_COARSE_SCAN).best

    def _other_coupling(self) -> list[str]:
        """Return the setting that keeps budgets where the method as it is empties a layer first."""
        chooser, (coupling, floor) = self.costing.chooser, REACHING
        if (chooser.choice.coupling, chooser.choice.floor) == REACHING:
            return []
        chooser = chooser.with_settings(coupling=coupling, floor=floor)
        costing = replace(self.costing, chooser=chooser)
        best = replace(self, costing=costing)._search_coarsely()
        setting = f"coupling '{coupling}' with floor '{floor}' (sparsity {best.sparsity:.2f})"
        return [setting] if best.keeps else []

    def does_not_fit(
        self, budgets: Sequence[Budget], nearest: Candidate, methods: Sequence[str]
    ) -> DoesNotFit:
        """Return an error that says how near methods come to all budgets, and what would help.

        What would help against a budget of time is not known without measuring it.
        """
        worst = nearest.binding
        limit = next(b for b in budgets if b.resource == worst)
        others = self.alternatives(None) if RESOURCES[worst].shrinks_with_input else ()
        ways = list(map(str, others[:_SHOWN_WAYS]))
        if not RESOURCES[worst].measured:
            ways = [*self._other_coupling(), *ways]
        advice = f"these would: {'; '.join(ways)}" if ways else "nothing that was tried keeps it"
        takes = describe(worst, nearest.figures[worst])
        if nearest.figures[worst] <= limit.limit or takes == str(limit):
            takes += f" and {100 * CPU_MARGIN:g} % for what a prediction may miss,"
        return DoesNotFit(
            f"no network pruned by {', '.join(methods)} keeps a {worst} budget of {limit} "
            f"with {self.step}: the closest takes {takes} at sparsity {nearest.sparsity:.4f}; "
            f"{advice}",
            nearest,
            others,
        )


def _guess(exceeding: Candidate, found: Candidate) -> float:
    """Return where the budget would be met if its share fell evenly on a logarithmic scale."""
    high, low = math.log(exceeding.worst), math.log(max(found.worst, 1e-9))
    share = min(max(high / max(high - low, 1e-9), 0.02), 0.98)
    return exceeding.sparsity + share * (found.sparsity - exceeding.sparsity)
