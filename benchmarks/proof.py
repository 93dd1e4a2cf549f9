"""Are slim networks worth training? Allocations of width on three real data sets.

    python -m benchmarks.proof --store out/proof             # trains what is missing, then prints
    python -m benchmarks.proof --store out/proof --table     # prints what is there

Cells are ordered so that whole comparisons become complete one after the other; killed, it goes
on; started several times, processes share the work. The race is run on curves that are stored
whole, so it costs nothing more here; what it would cost is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch

from benchmarks._proof_tasks import TASKS
from ranp.experiments.compare import FULL, absolute_budget
from ranp.experiments.comparing import LoopRuns
from ranp.experiments.evaluation import evaluate
from ranp.experiments.statistics import compare_paired, holm
from ranp.report.comparison_tables import markdown
from ranp.trials.allocating import Planned
from ranp.trials.race import RACE, Racing, make_allocator
from ranp.trials.store import Store

CANDIDATES = ("thin", "weighted", "power:-0.25", "ranp-f")
"""What races, and is trained to the end: of the default candidates those that come first."""

ORDER = (
    ("hippocampus", "flops=3%"),
    ("modelnet10", "flops=3%"),
    ("left_atrium", "flops=3%"),
    ("hippocampus", "flops=10%"),
    ("modelnet10", "flops=10%"),
    ("left_atrium", "flops=10%"),
)
SEEDS = (range(4), range(4, 8))
LOST = 0.3
"""A structure with a smaller Dice was not found."""

COST = 1.5
"""Most that a race costs here: trainings are short, so it is much; 750 steps, 5 % of 15,000."""


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
    """Train what is missing: four seeds of all comparisons, four more, then the full networks."""
    runs = {(n, budget): make_runs(store, n, budget) for n, budget in ORDER if only in n}
    races = [(part, methods) for part in SEEDS for methods in (CANDIDATES, (RACE,))]
    whole = [(range(seed, seed + 1), (FULL,)) for part in SEEDS for seed in part]
    for seeds, methods in (*races, *whole):  # a race reads the candidates' curves
        for (_, budget), each in runs.items():
            for seed in seeds:
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


def known(store: Store) -> Iterator[tuple[str, str, LoopRuns]]:
    """Yield task, budget and runs of every comparison, with the seeds that are complete."""
    for name, budget in ORDER:
        runs = make_runs(store, name, budget)
        seeds = complete_seeds(runs, store, budget)
        if seeds:
            whole = all(runs.result(store, FULL, budget, seed) for seed in seeds)
            methods = runs.methods if whole else runs.methods[1:]
            yield name, budget, replace(runs, seeds=seeds, methods=methods)


def summary(store: Store, comparisons: Sequence[tuple[str, str, LoopRuns]]) -> Iterator[str]:
    """Yield the race against the network thinned by hand, a row for each comparison."""
    shown = (*CANDIDATES, RACE)
    columns = ("data", "budget", "seeds", *shown, "race - thin", "p", "p, Holm", "class lost")
    yield " | ".join(columns)
    yield " | ".join(["---"] * 2 + ["---:"] * (len(columns) - 2))
    differences = {}
    for name, budget, runs in comparisons:
        race, thin = (accuracies(store, runs, method, budget) for method in (RACE, "thin"))
        differences[name, budget] = compare_paired(race, thin)
    corrected = holm({"; ".join(key): each.p or 1.0 for key, each in differences.items()})
    for name, budget, runs in comparisons:
        found = (accuracies(store, runs, method, budget) for method in shown)
        means = [f"{fmean(each):.1f}" if each else "" for each in found]
        ahead = differences[name, budget]
        lost = ", ".join(f"{m} {losses(store, runs, m, budget)}" for m in ("thin", RACE))
        cells = [name, budget, str(len(runs.seeds)), *means]
        low, high = ahead.summary.low, ahead.summary.high
        cells.append(f"{ahead.summary.mean:+.1f} ({low:+.1f} to {high:+.1f})")
        cells += [f"{ahead.p:.3f}", f"{corrected[f'{name}; {budget}']:.3f}", lost]
        yield " | ".join(cells)
    yield ""


def accuracies(store: Store, runs: LoopRuns, method: str, budget: str) -> list[float]:
    """Return the accuracy of every seed in which a network came down to the budget, in per cent."""
    found = (runs.result(store, method, budget, seed) for seed in runs.seeds)
    return [100 * each["accuracy"] for each in found if each["outcome"] == "trained"]


def losses(store: Store, runs: LoopRuns, method: str, budget: str) -> int:
    """Return the number of seeds in which a structure has a Dice below 0.3."""
    found = [runs.result(store, method, budget, seed)["metrics"] for seed in runs.seeds]
    dice = [[v["last"] for n, v in each.items() if n.startswith("dice_")] for each in found]
    return sum(min(each, default=1.0) < LOST for each in dice)


def tables(store: Store) -> Iterator[str]:
    """Yield what is known of every comparison, as Markdown."""
    comparisons = list(known(store))
    yield from summary(store, comparisons)
    for name, budget, runs in comparisons:
        yield f"## {name}, {budget}, {len(runs.seeds)} seeds\n"
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
        race = runs.allocation(RACE, budget, seed).about["race"]
        best = max(final, key=lambda each: final[each])
        behind = 100 * (final[best] - runs.result(store, RACE, budget, seed)["accuracy"])
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
        if (result := runs.result(store, RACE, budget, seed))
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
