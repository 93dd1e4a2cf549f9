"""Are slim networks worth training? Allocations of width on three real data sets.

    python -m benchmarks.proof --store out/proof             # trains what is missing
    python -m benchmarks.proof --store out/proof --full      # the same for the full networks
    python -m benchmarks.proof --store out/proof --table     # prints what is there
    python -m benchmarks.proof --store out/proof --csv DIR   # the same, training by training

Cells are ordered so that whole comparisons become complete one after the other; killed, it goes
on; started several times, processes share the work. The race is run on curves that are stored
whole, so it costs nothing more here; what it would cost is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

import torch
from torch import nn

from benchmarks._proof_tasks import TASKS
from ranp.errors import UsageError
from ranp.experiments.compare import FULL, absolute_budget
from ranp.experiments.comparing import LoopRuns
from ranp.experiments.evaluation import evaluate
from ranp.experiments.statistics import Difference, compare_paired, holm
from ranp.files import write_text
from ranp.fitting import TrainingStep
from ranp.report.comparison_tables import markdown, runs_csv
from ranp.resources.budgets import parse_budget
from ranp.trials.allocating import Planned
from ranp.trials.race import (
    DEFAULT_CANDIDATES,
    RACE,
    THIN,
    Racing,
    default_candidates,
    make_allocator,
)
from ranp.trials.store import Store

RACING = 5
"""How many of the default candidates race."""

CANDIDATES = DEFAULT_CANDIDATES[:RACING]
"""What races at a budget of FLOPs."""

COMPARED = (THIN, "ranp-f", RACE)
"""What is trained to the end with every seed."""

SEEDS = {
    ("modelnet10", "flops=3%"): range(300, 312),
    ("hippocampus", "flops=3%"): range(300, 316),
    ("left_atrium", "flops=3%"): range(300, 304),
    ("modelnet10", "flops=10%"): range(300, 304),
    ("hippocampus", "flops=10%"): range(300, 304),
    ("left_atrium", "flops=10%"): range(300, 304),
    ("hippocampus", "memory=25%"): range(300, 304),
}
"""Seeds of every comparison, none of which a rule of the race was settled on. Their numbers were
settled before as well: more where earlier seeds had shown a difference that few cannot prove."""

TO_THE_END, WITH_SEEDS = ("modelnet10", "flops=3%"), range(300, 303)
"""Where every candidate is trained to the end, to see what a race misses."""

FULL_SEEDS = range(300, 302)
"""Seeds of the full networks, one for each fold."""

LOST = 0.3
"""A structure with a smaller Dice was not found."""

COST = 2.4
"""Most that a race costs here: trainings are short, so it is much; 1,200 steps, 5 % of 24,000."""


def make_runs(store: Store, name: str, budget: str, *, trains: bool = True) -> LoopRuns:
    """Return the comparison on a task at a budget, which may be forbidden to train."""
    task = TASKS[name]
    allocator = make_allocator(
        task.build,
        task.train if trains else _refuse,
        store,
        score_with=(task.loader(), task.loss),
        example_input=task.shape,
        name=f"proof-{name}-3",
        step=TrainingStep(task.batch, task.shape[1:], optimizer="adamw"),
    )
    limit = parse_budget(*budget.split("="))
    if limit.is_counted:
        limit = absolute_budget(budget, allocator.full().chooser.costs())
    racing = Racing(allocator, task.check_ins, default_candidates(limit)[:RACING], COST)
    methods = (FULL, *(CANDIDATES if (name, budget) == TO_THE_END else ()), *COMPARED)
    return LoopRuns(
        allocator,
        tuple(dict.fromkeys(methods)),
        {budget: limit},
        tuple(SEEDS[name, budget]),
        racing,
    )


def _refuse(model: nn.Module, seed: int) -> Iterator[float]:
    raise UsageError("this race is not complete")
    yield 0.0


def train(store: Store, only: str) -> None:
    """Train what is missing, comparison by comparison and seed by seed.

    A race comes one seed after the others: its second meeting has the next seed, and reads off it.
    """
    for (name, budget), seeds in SEEDS.items():
        if only not in f"{name}; {budget}":
            continue
        runs = make_runs(store, name, budget)
        for seed in (*seeds, seeds[-1] + 1):
            to_the_end = (name, budget) == TO_THE_END and seed in WITH_SEEDS
            for method in runs.methods[1:] if to_the_end else COMPARED:
                if method != RACE and seed in seeds:
                    train_one(runs, store, method, budget, seed)
            if seed - 1 in seeds:
                train_one(runs, store, RACE, budget, seed - 1)


def train_full(store: Store, only: str) -> None:
    """Train the full networks, which take longest."""
    for (name, budget), seed in product(SEEDS, FULL_SEEDS):
        if only in f"{name}; {budget}":
            train_one(make_runs(store, name, budget), store, FULL, budget, seed)


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


def is_complete(runs: LoopRuns, store: Store, budget: str, seed: int) -> bool:
    """Return whether all that is compared is trained with a seed."""
    try:
        found = [runs.result(store, method, budget, seed) for method in COMPARED]
    except UsageError:
        return False
    return None not in found


def known(store: Store, only: str) -> Iterator[tuple[str, str, LoopRuns]]:
    """Yield task, budget and runs of every comparison, with the seeds that are complete."""
    for name, budget in SEEDS:
        if only not in f"{name}; {budget}":
            continue
        runs = make_runs(store, name, budget, trains=False)
        seeds = tuple(seed for seed in runs.seeds if is_complete(runs, store, budget, seed))
        if seeds:
            yield name, budget, replace(runs, seeds=seeds)


def summary(store: Store, comparisons: Sequence[tuple[str, str, LoopRuns]]) -> Iterator[str]:
    """Yield the race against the network thinned by hand, a row for each comparison."""
    columns = (
        *("data", "budget", "seeds", FULL, *COMPARED, "race - ranp-f", "race - thin"),
        *("p, t-test", "Holm", "p, sign-flip", "Holm", "class lost"),
    )
    yield " | ".join(columns)
    yield " | ".join(["---"] * 2 + ["---:"] * (len(columns) - 2))
    ahead = {
        f"{name}; {budget}": difference(store, runs, budget, THIN)
        for name, budget, runs in comparisons
    }
    holm_t = holm({key: 1.0 if each.p is None else each.p for key, each in ahead.items()})
    holm_flip = holm({key: each.p_flip or 1.0 for key, each in ahead.items()})
    for name, budget, runs in comparisons:
        found = [accuracies(store, runs, method, budget) for method in (FULL, *COMPARED)]
        means = [
            f"{fmean(each.values()):.1f}{'' if len(each) == len(runs.seeds) else f' ({len(each)})'}"
            if each
            else ""
            for each in found
        ]
        key = f"{name}; {budget}"
        tests = (ahead[key].p or 1.0, holm_t[key], ahead[key].p_flip or 1.0, holm_flip[key])
        lost = ", ".join(f"{m} {losses(store, runs, m, budget)}" for m in COMPARED)
        differences = [
            interval(difference(store, runs, budget, "ranp-f")),
            interval(ahead[key]),
        ]
        cells = [name, budget, str(len(runs.seeds)), *means, *differences]
        yield " | ".join([*cells, *(f"{p:.3f}" for p in tests), lost])
    yield ""


def difference(store: Store, runs: LoopRuns, budget: str, other: str) -> Difference:
    """Return how far the race's networks are from others, over the seeds of both."""
    race, theirs = (accuracies(store, runs, method, budget) for method in (RACE, other))
    common = [seed for seed in race if seed in theirs]
    return compare_paired([race[seed] for seed in common], [theirs[seed] for seed in common])


def interval(difference: Difference) -> str:
    """Format a difference in points, with its interval."""
    found = difference.summary
    if found.low is None or found.high is None:
        return f"{found.mean:+.1f}"
    return f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f})"


def accuracies(store: Store, runs: LoopRuns, method: str, budget: str) -> dict[int, float]:
    """Return the accuracy with every seed in which a network was trained, in per cent."""
    found = {seed: runs.result(store, method, budget, seed) for seed in runs.seeds}
    return {
        seed: 100 * each["accuracy"]
        for seed, each in found.items()
        if each is not None and each["outcome"] == "trained"
    }


def losses(store: Store, runs: LoopRuns, method: str, budget: str) -> int:
    """Return the number of seeds in which a structure has a Dice below 0.3."""
    found = [runs.result(store, method, budget, seed) for seed in runs.seeds]
    dice = [
        [v["last"] for n, v in each["metrics"].items() if n.startswith("dice_")]
        for each in found
        if each is not None and each["outcome"] == "trained"
    ]
    return sum(min(each, default=1.0) < LOST for each in dice)


def tables(store: Store, only: str) -> Iterator[str]:
    """Yield what is known of every comparison, as Markdown."""
    comparisons = list(known(store, only))
    yield from summary(store, comparisons)
    for name, budget, runs in comparisons:
        yield f"## {name}, {budget}, {len(runs.seeds)} seeds\n"
        yield markdown(evaluate(runs, store))
        yield "\n".join(races(runs, store, budget))


def write_runs(store: Store, only: str, directory: Path) -> None:
    """Write a CSV file for every comparison, with a line for every training."""
    for name, budget, runs in known(store, only):
        file = directory / f"{name}-{budget.replace('=', '-').rstrip('%')}.csv"
        write_text(file, runs_csv(evaluate(runs, store)))


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
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--csv", type=Path)
    parser.add_argument(
        "--only",
        default="",
        help="Only comparisons with this in them, such as 'modelnet10; flops=3%%'.",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = Store(arguments.store)
    if arguments.table:
        for text in tables(store, arguments.only):
            print(text)
    elif arguments.csv is not None:
        write_runs(store, arguments.only, arguments.csv)
    elif arguments.full:
        train_full(store, arguments.only)
    else:
        train(store, arguments.only)


if __name__ == "__main__":
    main()
