"""Are slim networks worth training? Allocations of width on three real data sets.

    python -m benchmarks.proof --store out/proof             # trains what is missing, then prints
    python -m benchmarks.proof --store out/proof --table     # prints what is there

Cells are ordered so that whole comparisons become complete one after the other; killed, it goes
on; started several times, processes share the work. The race is run on curves that are stored
whole, so it costs nothing more here; what it would cost is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch

from benchmarks._proof_tasks import TASKS
from ranp.experiments.compare import FULL, absolute_budget
from ranp.experiments.comparing import LoopRuns
from ranp.experiments.evaluation import evaluate
from ranp.report.comparison_tables import markdown
from ranp.trials.allocating import Planned
from ranp.trials.race import RACE, Racing, make_allocator
from ranp.trials.store import Store

CANDIDATES = ("thin", "power:0.25", "ranp-f", "power:-0.25", "weighted")
"""What races, and is trained to the end: of the default candidates those that come first."""

ORDER = (
    ("hippocampus", "flops=3%"),
    ("modelnet10", "flops=3%"),
    ("left_atrium", "flops=3%"),
    ("hippocampus", "flops=10%"),
    ("modelnet10", "flops=10%"),
    ("left_atrium", "flops=10%"),
)
SEEDS = (range(4), range(4, 6))
COST = 3.0
"""Most that a race costs here: trainings are short, so it is much; 1,500 steps, 5 % of 30,000."""


def make_runs(store: Store, name: str, budget: str) -> LoopRuns:
    """Return the comparison of all families on a task at a budget, with the seeds of both parts."""
    task = TASKS[name]
    allocator = make_allocator(
        task.build,
        task.train,
        store,
        score_with=(task.loader(), task.loss),
        example_input=task.shape,
        name=f"proof-{name}-3",
    )
    racing = Racing(allocator, task.check_ins, CANDIDATES, COST)
    limit = absolute_budget(budget, allocator.full().costs)
    seeds = tuple(seed for part in SEEDS for seed in part)
    return LoopRuns(allocator, ("full", *CANDIDATES, RACE), {budget: limit}, seeds, racing)


def train(store: Store, only: str) -> None:
    """Train what is missing: all comparisons with four seeds, full networks, then more seeds."""
    runs = {(n, budget): make_runs(store, n, budget) for n, budget in ORDER if only in n}
    for part in SEEDS:
        for methods in (CANDIDATES, (RACE,), (FULL,)):  # a race reads the candidates' curves
            for (_, budget), each in runs.items():
                for seed in part:
                    for method in methods:
                        train_one(each, store, method, budget, seed)


def train_one(runs: LoopRuns, store: Store, method: str, budget: str, seed: int) -> None:
    """Train one cell, unless it is there or another process is at it."""
    made = runs.allocation(method, budget, seed)
    if not isinstance(made, Planned):
        return
    loop = runs.allocator.loop
    cell = loop.cell(made.alive, seed)
    if store.missing([cell]):
        store.complete([cell], loop)
        result = store.result(cell)
        if result is not None:
            took = f"{result['accuracy']:.4f} in {result['cpu_seconds']:.0f} s"
            print(loop.name, budget, method, seed, took, flush=True)


def complete_seeds(runs: LoopRuns, store: Store, budget: str) -> tuple[int, ...]:
    """Return the seeds of which all candidates and the race's network are trained."""
    return tuple(
        seed
        for seed in runs.seeds
        if all(
            runs.result(store, method, budget, seed) is not None for method in (*CANDIDATES, RACE)
        )
    )


def tables(store: Store) -> Iterator[str]:
    """Yield what is known of every comparison, as Markdown."""
    for name, budget in ORDER:
        runs = make_runs(store, name, budget)
        seeds = complete_seeds(runs, store, budget)
        if not seeds:
            continue
        whole = all(runs.result(store, FULL, budget, seed) for seed in seeds)
        methods = runs.methods if whole else runs.methods[1:]
        runs = replace(runs, seeds=seeds, methods=methods)
        yield f"## {name}, {budget}, {len(seeds)} seeds\n"
        yield markdown(evaluate(runs, store))
        yield "\n".join(races(runs, store, budget))


def races(runs: LoopRuns, store: Store, budget: str) -> Iterator[str]:
    """Yield what the races chose, and how far that is from the best that was trained to the end."""
    for seed in runs.seeds:
        final = {
            method: result["accuracy"]
            for method in CANDIDATES
            if (result := runs.result(store, method, budget, seed))
            and result["outcome"] == "trained"
        }
        race = runs.allocation("race", budget, seed).about["race"]
        best = max(final, key=lambda each: final[each])
        behind = 100 * (final[best] - final[race["winner"]])
        standing = "; ".join(
            f"{rung['check_ins']}: {' > '.join(rung['standing'])}" for rung in race["rungs"]
        )
        yield (
            f"- seed {seed}: {race['winner']} wins, {behind:.2f} points below the best at the end "
            f"({best}); cost {100 * race['spent']:.0f} % of the training's FLOPs, "
            f"{race['cpu_seconds']:.0f} CPU s; {standing}"
        )
    whole = [
        result["cpu_seconds"]
        for seed in runs.seeds
        if (result := runs.result(store, "race", budget, seed))
    ]
    yield f"- the training that follows: {fmean(whole):.0f} CPU s\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--only", default="", help="A part of a task's name.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = Store(arguments.store)
    if not arguments.table:
        train(store, arguments.only)
    for text in tables(store):
        print(text)


if __name__ == "__main__":
    main()
