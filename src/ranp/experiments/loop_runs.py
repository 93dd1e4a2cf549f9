"""Comparisons with the user's own network and training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from rich.console import RenderableType

from ranp.display import plain
from ranp.errors import UsageError
from ranp.experiments.cells import FULL
from ranp.experiments.evaluation import evaluate
from ranp.experiments.jobs import Jobs, check_jobs, complete_cells
from ranp.experiments.matching import (
    REFERENCE,
    SAME_AT_A_BUDGET,
    absolute_budget,
    checked_methods,
    choose_reference,
    distinct,
)
from ranp.graph import ExampleInput
from ranp.pruning import Choice, Coupling, Floor, Forward
from ranp.report.comparison_tables import terminal
from ranp.resources.budgets import Amount, Budget, parse_budgets
from ranp.trials.allocating import Allocation, Allocator, ScoreWith, Unreachable, make_allocator
from ranp.trials.candidates import THIN
from ranp.trials.loops import Build, Train, check_loop
from ranp.trials.race import DEFAULT_COST, RACE, Racing
from ranp.trials.source_code import code_fingerprint
from ranp.trials.store import Cell, Store

DEFAULT_METHODS = (FULL, "thin", "ranp-f", "weighted", "power")


@dataclass
class LoopRuns:
    """Runs of methods with the user's own loop.

    Methods are names, "full" for the network as it is, "race" for the winner of a race, which
    `racing` runs; absolute budgets are by the text that asked for them.
    """

    allocator: Allocator
    methods: tuple[str, ...]
    budgets: Mapping[str, Budget]
    seeds: tuple[int, ...]
    racing: Racing | None = None
    _allocations: dict[tuple[str, str, int], Allocation | Unreachable] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Names of the training function and the network."""
        return f"{self.allocator.loop.name}, {type(self.allocator.loop.model).__name__}"

    @property
    def settings(self) -> dict[str, Any]:
        """What the runs have in common."""
        return {"train": self.allocator.loop.name, **self.allocator.settings}

    @property
    def reference(self) -> str | None:
        """The method that the others are compared with."""
        return choose_reference(self.methods, (RACE, REFERENCE))

    @property
    def same_networks(self) -> Mapping[str, str]:
        """Methods that come to the network of another; "flat" keeps to its scores here."""
        return {THIN: SAME_AT_A_BUDGET[THIN]}

    def allocation(self, method: str, budget: str, seed: int) -> Allocation | Unreachable:
        """Return a method's network at a budget; of "race", the winner's."""
        key = (method, "", 0) if method == FULL else (method, budget, seed)
        if key not in self._allocations:
            self._allocations[key] = self._allocate(method, self.budgets[budget], seed)
        return self._allocations[key]

    def _allocate(self, method: str, budget: Budget, seed: int) -> Allocation | Unreachable:
        if method == FULL:
            return self.allocator.full()
        if method == RACE and self.racing is not None:
            raced = self.racing.run(budget, seed)
            return replace(
                raced.allocation, about={**raced.allocation.about, "race": raced.to_dict()}
            )
        return self.allocator.allocate(self.allocator.choice(method, budget, seed), budget)

    def unreachable(self) -> list[str]:
        """Return why methods cannot reach a budget, each once."""
        reasons = [
            allocation.reason
            for allocation in self._allocations.values()
            if isinstance(allocation, Unreachable)
        ]
        return list(dict.fromkeys(reasons))

    def _named_cells(self) -> list[tuple[str, Cell]]:
        """Return the runs that can be trained, seed by seed, with the names of their networks."""
        loop, named = self.allocator.loop, []
        for seed, budget, method in product(self.seeds, self.budgets, self.methods):
            network = self.allocation(method, budget, seed)
            at = f" at {budget}" if method != FULL and len(self.budgets) > 1 else ""
            if isinstance(network, Allocation):
                named.append((f"{method}{at}", loop.cell(network.alive, seed)))
        return named

    def cells(self) -> list[Cell]:
        """Return the runs that can be trained, each once, seed by seed."""
        return distinct(cell for _, cell in self._named_cells())

    def names(self, cell: Cell) -> str:
        """Return the methods whose network a run trains: some may come to the same one."""
        return ", ".join(dict.fromkeys(name for name, each in self._named_cells() if each == cell))

    def result(self, store: Store, method: str, budget: str, seed: int) -> dict[str, Any] | None:
        """Return the result of a run, and whether it is outdated; None if it is not complete."""
        allocated = self.allocation(method, budget, seed)
        if isinstance(allocated, Unreachable):
            outcome = {"outcome": "unreachable", "reason": allocated.reason, "outdated": False}
            return {**allocated.about, **outcome}
        cell = self.allocator.loop.cell(allocated.alive, seed)
        result = store.result(cell)
        if result is None:
            return None
        last = result["curve"][-1] if result["curve"] else {}
        metrics = {name: {"last": value} for name, value in last.items()}
        return {
            "device": "cpu",
            **allocated.about,
            **result,
            "metrics": metrics,
            "outdated": store.is_outdated(cell),
        }


@dataclass(frozen=True)
class LoopComparison:
    """The result of a comparison.

    Attributes:
        result: Rows, intervals, tests and conclusions for every budget, as plain values.
    """

    result: Mapping[str, Any]

    def __rich__(self) -> RenderableType:
        """Return a table for every budget, with the sentences below it."""
        return terminal(self.result)

    def __str__(self) -> str:
        """Return the same as text."""
        return plain(self)


def compare(
    build: Build,
    train: Train,
    *,
    methods: Sequence[str] = DEFAULT_METHODS,
    budget: Mapping[str, Amount] | Sequence[Mapping[str, Amount]] = MappingProxyType(
        {"flops": "10%"}
    ),
    seeds: int = 3,
    score_with: ScoreWith | None = None,
    forward: Forward | None = None,
    example_input: ExampleInput | None = None,
    name: str | None = None,
    lam: float | None = None,
    coupling: Coupling | None = None,
    floor: Floor | None = None,
    length: int | None = None,
    cost: Amount = DEFAULT_COST,
    candidates: Sequence[str] | Literal["default"] = "default",
    out: str | Path = "out/compare",
    jobs: Jobs = 1,
    recompute: bool = False,
    tell: Callable[[str], None] = print,
) -> LoopComparison:
    """Compare methods at the same cost, with your own network and training loop.

    You can stop it at any time: the same call continues where it was. Started several times,
    the processes share the work.

    Args:
        build: Function that returns the full network.
        train: `train(model, seed)` trains a network and yields a metric at every check-in: a
            number (higher is better), or a mapping such as `{"dice": 0.81, "loss": 0.4}`, whose
            first name other than "loss" is the metric. The last value is the result.
        methods: Names in `ranp.METHODS`, "full" for the unpruned network, or "race" for the
            winner of a race (see `ranp.race`).
        budget: Budget of the slim networks, such as `{"flops": "10%"}`; or a list of budgets.
        seeds: Number of runs of each method.
        score_with: Loader and `loss(output, target)` to score with, for methods that need data; the
            loader alone with `forward`.
        forward: `forward(model, batch)` -> scalar tensor, instead of the loss (see `race`).
        example_input: Input to trace the network with and to count costs at; if None, the first
            batch's input, or what `forward` calls the network with.
        name: Name of the training in the store; the function's name if None. Change it when the
            data or the training changes: runs with another name are computed anew.
        lam: lambda of Eq. 10; 11 if None.
        coupling: Rule for channels that are tied by additions; as in `prune` if None.
        floor: Minimum number of neurons in every layer, or "auto" for what the network needs; as in
            `prune` if None.
        length: Number of check-ins of a whole training; needed for "race".
        cost: Maximum cost of a race, as a share of the training that follows: 0.05, or "5%".
        candidates: Candidates of a race (see `race`).
        out: Directory for the runs.
        jobs: Number of processes that train, or "slurm".
        recompute: Whether to compute runs again that another version of `build` or `train` made.
        tell: Called with a line before each run, and for methods that cannot reach a budget.
    """
    check_loop(train, length, build)
    check_jobs(jobs)
    if not isinstance(seeds, int) or seeds < 1:
        raise UsageError(f"seeds must be at least 1, got {seeds!r}")
    asked: Sequence[Any] = budget if isinstance(budget, list | tuple) else [budget]
    if not asked or any(len(parse_budgets(each)) != 1 for each in asked):
        raise UsageError(
            "budget must name one resource, such as {'flops': '10%'}, or be a list of such budgets"
        )
    names = checked_methods(methods, also=(RACE,))
    store = Store(Path(out) / "cells", code=code_fingerprint(build, train), recompute=recompute)
    given: dict[str, Any] = {"score_with": score_with, "forward": forward, "name": name}
    given["example_input"] = example_input
    settings: dict[str, Any] = {"lam": lam, "coupling": coupling, "floor": floor}
    allocator = make_allocator(build, train, store, **given, **settings)
    racing = None
    if RACE in names:
        if length is None:
            raise UsageError(
                "a race needs the length of a whole training; give length, in check-ins"
            )
        raced = None if candidates == "default" else candidates
        here = 1 if isinstance(jobs, str) else jobs  # races come before what a cluster trains
        racing = Racing(allocator, length, raced, cost, tell, here)
    full = allocator.chooser(Choice.make("thin")).costs()
    budgets = {
        text: absolute_budget(text, full)
        for each in asked
        for text in (f"{resource}={amount}" for resource, amount in each.items())
    }
    runs = LoopRuns(allocator, names, budgets, tuple(range(seeds)), racing)
    cells = runs.cells()
    for reason in runs.unreachable():
        tell(reason)

    def on_cell(cell: Cell, done: int, total: int) -> None:
        tell(f"run {done + 1} of {total}: {runs.names(cell)}, seed {cell['seed']}")

    with closing(allocator.loop):  # one that is refused at a check-in is still open
        complete_cells(store, cells, allocator.loop, on_cell, jobs)
    return LoopComparison(evaluate(runs, store))
