"""Methods side by side at the same cost: matched budgets, seeds, paired tests, a plain answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from ranp.experiments.evaluation import SAME_AT_A_BUDGET
from ranp.experiments.jobs import Jobs, complete_cells
from ranp.experiments.store import Cell, OnCell, Store, ignore_cell
from ranp.graph import build_graph
from ranp.pruning import METHODS
from ranp.resources import count
from ranp.training.config import Config
from ranp.training.networks import build_network

FULL = "full"
REFERENCE = "ranp-f"
"""What the others are compared with, if it takes part; else the first method that prunes."""

_UNITS = {"gflops": "GFLOPs", "memory": "MB", "params": "parameters"}


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

    @property
    def title(self) -> str:
        """Name of the recipe, and of the user's own network if there is one."""
        own = self.config.network.name if ":" in self.config.network.name else None
        return self.config.recipe if own is None else f"{self.config.recipe}, {own}"

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
