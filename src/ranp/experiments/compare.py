"""Methods side by side at the same cost: matched budgets, seeds, paired tests, a plain answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

from ranp.errors import UsageError, suggest
from ranp.experiments.cells import FULL, TrainingCell, TrainingCells, data_fingerprint
from ranp.experiments.evaluation import SAME_AT_A_BUDGET, distinct
from ranp.pruning import find_method
from ranp.resources import Costs, count
from ranp.resources.budgets import RESOURCES, Budget, find_resource, parse_budget
from ranp.training.config import Config
from ranp.trials.store import Cell, Store

REFERENCE = "ranp-f"


def choose_reference(methods: Sequence[str], preferred: Sequence[str] = (REFERENCE,)) -> str | None:
    """Return the method that the others are compared with; None if nothing is pruned.

    That is the first of the preferred ones that takes part, else the first that prunes.
    """
    pruned = [name for name in methods if name != FULL]
    return next((name for name in (*preferred, *pruned) if name in pruned), None)


def parse_budget_text(text: str) -> Budget:
    """Return the budget for a text such as "flops=10%", "gflops=5" or "activations=200MB".

    Raises:
        UsageError: Not a resource that is counted, or not a positive amount.
    """
    name, separator, amount = text.partition("=")
    counted = [each for each, row in RESOURCES.items() if row.total is not None]
    if not separator or name not in counted:
        hint = suggest(name, counted) if separator else ""
        examples = [f"{each}={find_resource(each).example}" for each in counted]
        raise UsageError(f"--budget {text}: write flops=10%, or {', '.join(examples)}.{hint}")
    budget = parse_budget(name, amount)
    if name == "flops":  # the same cells as for gflops, to the last bit
        unit = 1 if budget.of_full else 1e9
        return replace(budget, resource="gflops", limit=budget.limit / unit)
    return budget


def absolute_budget(text: str, full: Costs) -> Budget:
    """Return the budget for a text in absolute figures, by what the full network costs.

    Raises:
        UsageError: The full network keeps it already.
    """
    budget = parse_budget_text(text)
    whole = Budget(budget.resource, budget.total(full))
    budget = budget.absolute(whole.limit)
    if budget.limit >= whole.limit:
        raise UsageError(
            f"--budget {text}: the full network costs {whole} and keeps it without pruning; give a "
            "smaller one"
        )
    return budget


@dataclass(frozen=True)
class Design:
    """A comparison: every method ("full" for the network as it is) at every budget, for each seed.

    `config` has the first seed; absolute budgets are by the text that asked for them; `data` is the
    fingerprint of the cases (see `data_fingerprint`).
    """

    config: Config
    methods: tuple[str, ...]
    budgets: Mapping[str, Budget]
    seeds: tuple[int, ...]
    data: str | None = None

    @property
    def reference(self) -> str | None:
        """Name of the method that the others are compared with; None if nothing is pruned."""
        return choose_reference(self.methods)

    @property
    def title(self) -> str:
        """Name of the recipe, and of the user's own network if there is one."""
        network, recipe = self.config.network, self.config.recipe
        return f"{recipe}, {network.name}" if network.is_own else recipe

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration without its seed, as plain values."""
        return self.config.model_dump(mode="json", exclude={"seed"})

    def result(self, store: Store, method: str, budget: str, seed: int) -> dict[str, Any] | None:
        """Return the result of a run, and whether it is outdated; None if it is not complete."""
        cell = self.cell(method, budget, seed)
        found = store.result(cell)
        return None if found is None else {**found, "outdated": store.is_outdated(cell)}

    def cell(self, method: str, budget: str, seed: int) -> Cell:
        """Return the cell of one run."""
        pruned = None if method == FULL else SAME_AT_A_BUDGET.get(method, method)
        limit = None if pruned is None else self.budgets[budget]
        pruning = self.config.pruning.model_copy(update={"method": pruned})
        config = self.config.model_copy(update={"pruning": pruning, "seed": seed})
        return TrainingCell(config, limit, self.data).to_dict()

    def cells(self) -> list[Cell]:
        """Return the cells of all runs, each once, seed by seed: whole seeds come first."""
        runs = product(self.seeds, self.budgets, self.methods)
        return distinct(self.cell(method, budget, seed) for seed, budget, method in runs)


def checked_methods(names: Sequence[str], also: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of methods, "full" and `also` among them, each once.

    Raises:
        UsageError: An unknown one, or none that prunes.
    """
    for name in names:
        if name not in (FULL, *also):
            find_method(name, also=(FULL, *also))
    if all(name == FULL for name in names):
        raise UsageError("name at least one method that prunes, such as ranp-f")
    return tuple(dict.fromkeys(names))


def make_design(
    cells: TrainingCells, config: Config, methods: Sequence[str], budgets: Iterable[str], seeds: int
) -> Design:
    """Check what was asked for, and turn shares of the full network into figures."""
    methods = checked_methods(methods)
    traced = cells.trace(config)
    full = count(traced.model, traced.graph)
    limits = {text: absolute_budget(text, full) for text in budgets}
    if not limits:
        raise UsageError("give at least one budget, such as --budget flops=10%")
    return Design(
        config=config,
        methods=methods,
        budgets=limits,
        seeds=tuple(range(config.seed, config.seed + seeds)),
        data=data_fingerprint(config, cells.data),
    )


def seconds_left(design: Design, store: Store) -> float | None:
    """Estimate how long the missing cells take one process; None before the first is complete.

    A run takes as long as the same method at the same budget took with another seed; if there is
    none, as long as runs did on average.
    """
    took: dict[str, list[float]] = {}
    missing: list[str] = []
    for cell in design.cells():
        result = store.result(cell)
        row = repr((cell["config"].get("pruning"), cell["budget"]))
        if result is None:
            missing.append(row)
        else:
            took.setdefault(row, []).append(result.get("seconds", 0.0))
    if not took:
        return None
    average = fmean(seconds for row in took.values() for seconds in row)
    return sum(fmean(took[row]) if row in took else average for row in missing)
