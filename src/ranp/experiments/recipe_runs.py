"""Comparisons with a recipe: every method at every budget, for each seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from ranp.errors import UsageError
from ranp.experiments.cells import FULL, TrainingCell, TrainingCells, data_fingerprint
from ranp.experiments.matching import (
    SAME_AT_A_BUDGET,
    absolute_budget,
    checked_methods,
    choose_reference,
    distinct,
)
from ranp.resources import count
from ranp.resources.budgets import Budget
from ranp.training.config import Config
from ranp.trials.store import Cell, Store


@dataclass(frozen=True)
class RecipeRuns:
    """Runs of methods ("full" for the network as it is) with a recipe.

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
    def same_networks(self) -> Mapping[str, str]:
        """Methods that come to the network of another method."""
        return SAME_AT_A_BUDGET

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


def make_recipe_runs(
    cells: TrainingCells, config: Config, methods: Sequence[str], budgets: Iterable[str], seeds: int
) -> RecipeRuns:
    """Check what was asked for, and turn shares of the full network into figures."""
    methods = checked_methods(methods)
    traced = cells.trace(config)
    full = count(traced.model, traced.graph)
    limits = {text: absolute_budget(text, full) for text in budgets}
    if not limits:
        raise UsageError("give at least one budget, such as --budget flops=10%")
    return RecipeRuns(
        config=config,
        methods=methods,
        budgets=limits,
        seeds=tuple(range(config.seed, config.seed + seeds)),
        data=data_fingerprint(config, cells.data),
    )


def seconds_left(runs: RecipeRuns, store: Store) -> float | None:
    """Estimate how long the missing cells take one process; None before the first is complete.

    A run takes as long as the same method at the same budget took with another seed; if there is
    none, as long as runs did on average.
    """
    took: dict[str, list[float]] = {}
    missing: list[str] = []
    for cell in runs.cells():
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
