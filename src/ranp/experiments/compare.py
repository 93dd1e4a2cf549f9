"""Methods side by side at the same cost: matched budgets, seeds, paired tests, a plain answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, get_args

from ranp.errors import UsageError, suggest
from ranp.experiments.cells import (
    COSTS,
    Budget,
    Resource,
    TrainingCell,
    TrainingCells,
    data_fingerprint,
    input_shape,
)
from ranp.experiments.jobs import Jobs, complete_cells
from ranp.experiments.statistics import (
    Difference,
    compare_paired,
    conclude,
    holm,
    least_flip_p,
    summarise,
)
from ranp.experiments.store import Cell, OnCell, Store, ignore_cell, versions
from ranp.graph import build_graph
from ranp.pruning import METHODS
from ranp.resources import count
from ranp.training.config import Config
from ranp.training.networks import build_network

FULL = "full"
REFERENCE = "ranp-f"
"""What the others are compared with, if it takes part; else the first method that prunes."""

SAME_AT_A_BUDGET = {"flat": "layerwise"}
"""One width for all layers and the same share of every layer are the same at the same cost."""

UNEQUAL = 0.05
"""Beyond this deviation from a budget, a comparison is not quite one of equals, and says so."""

_UNITS = {"gflops": "GFLOPs", "memory": "MB", "params": "parameters"}
_MEANS = (
    *("gflops", "memory_mb", "parameters", "step_mb", "seconds", "cpu_seconds"),
    *("sparsity", "deviation"),
)


@dataclass(frozen=True)
class BudgetText:
    """A budget as it was asked for: `gflops=10%`, `memory=200` (MB), `params=1e6`.

    Attributes:
        text: What was written.
        resource: What is budgeted.
        amount: How much; a share of 1 if it is relative.
        relative: Whether it is relative to the full network.
    """

    text: str
    resource: Resource
    amount: float
    relative: bool

    @classmethod
    def parse(cls, text: str) -> BudgetText:
        """Reads a budget.

        Raises:
            UsageError: Not a resource, or not a positive number.
        """
        name, separator, value = text.partition("=")
        number = value.strip().removesuffix("%")
        relative = number != value.strip()
        if not separator or name not in COSTS:
            hint = suggest(name, COSTS) if separator else ""
            raise UsageError(
                f"--budget {text}: write gflops=10%, gflops=X, memory=X (MB) or params=X.{hint}"
            )
        try:
            amount = float(number)
        except ValueError as error:
            raise UsageError(f"--budget {text}: '{value}' is not a number") from error
        if not 0 < amount < float("inf"):
            raise UsageError(f"--budget {text}: give a positive number")
        resource = next(each for each in get_args(Resource) if each == name)
        return cls(text, resource, amount / 100 if relative else amount, relative)

    def of(self, full: float) -> Budget:
        """The budget in absolute figures.

        Args:
            full: What the full network costs of it.

        Raises:
            UsageError: The full network keeps it already.
        """
        amount = self.amount * full if self.relative else self.amount
        if amount >= full:
            raise UsageError(
                f"--budget {self.text}: the full network costs {full:.6g} {_UNITS[self.resource]} "
                "and keeps it without pruning; give a smaller one"
            )
        return Budget(self.resource, amount)


@dataclass(frozen=True)
class Design:
    """What is compared: every method at every budget, once for each seed.

    Attributes:
        config: Network, data, training and the first seed.
        methods: Their names; "full" for the network as it is.
        budgets: By what was asked for.
        seeds: The seeds.
        data: Which cases there are (see `data_fingerprint`).
    """

    config: Config
    methods: tuple[str, ...]
    budgets: Mapping[str, Budget]
    seeds: tuple[int, ...]
    data: str | None = None

    @property
    def reference(self) -> str | None:
        """The method that the others are compared with; none where nothing is pruned."""
        pruned = [name for name in self.methods if name != FULL]
        return REFERENCE if REFERENCE in pruned else next(iter(pruned), None)

    def cell(self, method: str, budget: str, seed: int) -> Cell:
        """One run, as a cell of the store."""
        pruning, limit = self.config.pruning.model_copy(update={"method": None}), None
        if method != FULL:
            name = SAME_AT_A_BUDGET.get(method, method)
            pruning = self.config.pruning.model_copy(update={"method": name})
            limit = self.budgets[budget]
        config = self.config.model_copy(update={"pruning": pruning, "seed": seed})
        return TrainingCell(config, limit, self.data).to_dict()

    def cells(self) -> list[Cell]:
        """All runs, each once, seed by seed: so whole seeds are there first."""
        wanted: dict[str, Cell] = {}
        for seed in self.seeds:
            for budget in self.budgets:
                for method in self.methods:
                    cell = self.cell(method, budget, seed)
                    wanted.setdefault(repr(cell), cell)
        return list(wanted.values())


def checked_methods(names: Sequence[str]) -> tuple[str, ...]:
    """Names of methods, each once.

    Raises:
        UsageError: An unknown one, or none that prunes.
    """
    for name in names:
        if name != FULL and name not in METHODS:
            raise UsageError(f"unknown method '{name}'.{suggest(name, [FULL, *METHODS])}")
    if all(name == FULL for name in names):
        raise UsageError("name at least one method that prunes, such as ranp-f")
    return tuple(dict.fromkeys(names))


def make_design(
    cells: TrainingCells,
    config: Config,
    methods: Sequence[str],
    budgets: Sequence[BudgetText],
    seeds: int,
) -> Design:
    """Checks what was asked for, and turns shares of the full network into figures.

    Args:
        cells: Knows where the data lies, and the user's own network.
        config: Network, data, training and the first seed.
        methods: Names of methods, and "full".
        budgets: What the slim networks may cost.
        seeds: How many.
    """
    methods = checked_methods(methods)
    if not budgets:
        raise UsageError("say what the networks may cost, such as --budget gflops=10%")
    network = build_network(config.network, cells.factory)
    shape = input_shape(config, cells.data_directory(config))
    full = count(network, build_graph(network, shape))
    return Design(
        config=config,
        methods=methods,
        budgets={each.text: each.of(COSTS[each.resource](full)) for each in budgets},
        seeds=tuple(range(config.seed, config.seed + seeds)),
        data=data_fingerprint(config, cells.data),
    )


def run(design: Design, cells: TrainingCells, on_cell: OnCell = ignore_cell, jobs: Jobs = 1) -> int:
    """Compute what is missing; return when all is there, whichever process computed it.

    Args:
        design: What is compared.
        cells: Computes one cell.
        on_cell: Called before each cell is computed.
        jobs: Processes that compute.

    Returns:
        The number of cells that were computed here.
    """
    return complete_cells(cells.store, design.cells(), cells, on_cell, jobs)


def seconds_left(design: Design, store: Store) -> float | None:
    """How long the missing cells will take one process; unknown before the first is complete.

    A run takes as long as the same method at the same budget took with another seed; where there
    is none, as long as runs did on average.
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


def evaluate(design: Design, store: Store) -> dict[str, Any]:
    """What came out, as plain values: rows, intervals, tests and conclusions for every budget.

    Cells that are not complete are left out, and counted.
    """
    wanted = design.cells()
    results = [result for cell in wanted if (result := store.result(cell)) is not None]
    trained = [result for result in results if result["outcome"] == "trained"]
    return {
        "schema": 1,
        "kind": "comparison",
        "recipe": design.config.recipe,
        "config": design.config.model_dump(mode="json", exclude={"seed"}),
        "seeds": list(design.seeds),
        "reference": design.reference,
        "goal": trained[0]["goal"] if trained else None,
        "device": trained[0]["device"] if trained else None,
        "full": results[0]["full"] if results else None,
        "cells": len(wanted),
        "complete": len(results),
        "budgets": [_at_budget(design, store, text) for text in design.budgets],
        "versions": versions(),
    }


def _at_budget(design: Design, store: Store, text: str) -> dict[str, Any]:
    """All methods at one budget."""
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for method in design.methods:
        cells = {seed: design.cell(method, text, seed) for seed in design.seeds}
        runs[method] = {
            seed: {**result, "outdated": store.is_outdated(cell)}
            for seed, cell in cells.items()
            if (result := store.result(cell)) is not None
        }
    accuracies = {method: _accuracies(found) for method, found in runs.items()}
    # The same network under two names is one test, not two to be corrected for.
    twins = {name: of for name, of in SAME_AT_A_BUDGET.items() if {name, of} <= accuracies.keys()}
    distinct = {name: values for name, values in accuracies.items() if name not in twins}
    differences = _differences(distinct, design.reference)
    seeds = len(accuracies.get(design.reference or "", {}))
    budget = design.budgets[text]
    return {
        "budget": text,
        "resource": budget.resource,
        "amount": budget.amount,
        "unit": _UNITS[budget.resource],
        "rows": [
            _row(method, found, differences.get(twins.get(method, method)))
            for method, found in runs.items()
        ],
        "least_flip_p": least_flip_p(seeds),
        "conclusion": _conclusion(design.reference, differences, seeds),
        "cautions": _cautions({name: found for name, found in runs.items() if name not in twins}),
    }


def _conclusion(reference: str | None, differences: Mapping[str, Difference], seeds: int) -> str:
    if reference is None or not seeds:
        return f"{reference or 'Nothing'} was not trained at this budget: nothing can be said."
    return conclude(reference, differences, seeds)


def _accuracies(runs: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    return {seed: run["accuracy"] for seed, run in runs.items() if run["outcome"] == "trained"}


def _differences(
    accuracies: Mapping[str, Mapping[int, float]], reference: str | None
) -> dict[str, Difference]:
    """Of every method against the reference, over the seeds that both were trained with."""
    ours = accuracies.get(reference or "", {})
    found: dict[str, Difference] = {}
    for method, theirs in accuracies.items():
        common = [seed for seed in theirs if seed in ours]
        if method != reference and common:
            found[method] = compare_paired(
                [theirs[seed] for seed in common], [ours[seed] for seed in common]
            )
    corrected = holm({name: each.p for name, each in found.items() if each.p is not None})
    return {name: replace(each, p_holm=corrected.get(name)) for name, each in found.items()}


def _row(
    method: str, runs: Mapping[int, dict[str, Any]], difference: Difference | None
) -> dict[str, Any]:
    trained = [run for run in runs.values() if run["outcome"] == "trained"]
    shown = trained or list(runs.values())
    metrics = trained[0]["metrics"] if trained else {}
    return {
        "method": method,
        "same_as": SAME_AT_A_BUDGET.get(method),
        "outcomes": {str(seed): run["outcome"] for seed, run in runs.items()},
        "reasons": sorted({run["reason"] for run in runs.values() if "reason" in run}),
        "accuracy": asdict(summarise([run["accuracy"] for run in trained])) if trained else None,
        "metrics": {
            name: asdict(summarise([run["metrics"][name]["last"] for run in trained]))
            for name in metrics
        },
        "means": {
            key: fmean(values)
            for key in _MEANS
            if (values := [run[key] for run in shown if run.get(key) is not None])
        },
        "worst_deviation": max(
            (run["deviation"] for run in shown if run["deviation"] is not None),
            key=abs,
            default=None,
        ),
        "difference": None if difference is None else _plain(difference),
        "runs": [{"seed": seed, **run} for seed, run in runs.items()],
    }


def _plain(difference: Difference) -> dict[str, Any]:
    tests = {"p": difference.p, "p_flip": difference.p_flip, "p_holm": difference.p_holm}
    return {**asdict(difference.summary), **tests}


def _cautions(runs: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> list[str]:
    """What a reader of the table must know."""
    cautions = []
    for method, found in runs.items():
        unreachable = [run for run in found.values() if run["outcome"] == "unreachable"]
        if unreachable:
            nearest = min(run["deviation"] for run in unreachable)
            cautions.append(
                f"{method} cannot come down to this budget with {len(unreachable)} of "
                f"{len(found)} seeds; the nearest costs {100 * nearest:.1f} % more."
            )
        diverged = [run for run in found.values() if run["outcome"] == "diverged"]
        if diverged:
            cautions.append(f"{method} diverged with {len(diverged)} of {len(found)} seeds.")
        off = [
            run["deviation"]
            for run in found.values()
            if run["outcome"] == "trained" and abs(run["deviation"] or 0.0) > UNEQUAL
        ]
        if off:
            worst = max(off, key=abs)
            cautions.append(
                f"{method} misses the budget by up to {100 * worst:+.1f} %: "
                "single neurons make no finer steps."
            )
    outdated = {m: sum(run["outdated"] for run in found.values()) for m, found in runs.items()}
    if named := [f"{m} ({n} of {len(runs[m])} seeds)" for m, n in outdated.items() if n]:
        cautions.append(
            f"Computed by other code than this version's: {', '.join(named)}; --recompute computes "
            "them again."
        )
    return cautions
