"""Are slim networks worth training? Allocations of width on three real data sets.

    python -m benchmarks.proof --store out/proof             # trains what is missing
    python -m benchmarks.proof --store out/proof --full      # the same for the full networks
    python -m benchmarks.proof --store out/proof --collect   # adds what is trained to the ledger
    python -m benchmarks.proof --table                       # prints what the ledger has

Cells are ordered so that whole comparisons become complete one after the other; killed, it goes
on; started several times, processes share the work. What has a line in the ledger, docs/results, is
not trained again. The race is run on curves that are stored whole, so it costs nothing more here;
what it would cost is printed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import torch
from torch import nn

from benchmarks._ledger import Ledger, Trained
from benchmarks._proof_tasks import LONG, TASKS
from ranp.errors import UsageError
from ranp.experiments.cells import FULL
from ranp.experiments.loop_runs import LoopRuns
from ranp.experiments.matching import absolute_budget
from ranp.experiments.statistics import Difference, compare_paired, holm
from ranp.fitting import TrainingStep
from ranp.resources.budgets import parse_budget
from ranp.trials.allocating import Allocation, make_allocator
from ranp.trials.candidates import DEFAULT_CANDIDATES, THIN, default_candidates
from ranp.trials.race import RACE, Racing
from ranp.trials.store import Store

RESULTS = Path(__file__).parents[1] / "docs" / "results"

RACING = 5
"""How many of the default candidates race."""

CANDIDATES = DEFAULT_CANDIDATES[:RACING]
"""What races at a budget of FLOPs."""

COMPARED = (THIN, "ranp-f", RACE)
"""What is trained to the end with every seed."""

SEEDS = {
    ("hippocampus", "flops=3%"): range(300, 316),
    ("modelnet10", "flops=3%"): range(300, 324),
    ("left_atrium", "flops=3%"): range(400, 406),
    ("hippocampus", "flops=10%"): range(300, 312),
    ("modelnet10", "flops=10%"): range(300, 312),
    ("left_atrium", "flops=10%"): range(400, 406),
    ("hippocampus", "memory=25%"): range(300, 304),
    ("hippocampus-long", "memory=25%"): range(500, 504),
    ("hippocampus-long", "flops=10%"): range(500, 506),
    ("modelnet10-long", "flops=10%"): range(500, 506),
    ("left_atrium-long", "flops=10%"): range(500, 506),
    ("hippocampus-long", "flops=3%"): range(500, 506),
    ("modelnet10-long", "flops=3%"): range(500, 506),
    ("left_atrium-long", "flops=3%"): range(500, 506),
}
"""Seeds of every comparison, none of which a rule of the race was settled on. Their numbers were
settled before as well: more where earlier seeds had shown a difference that few cannot prove, and,
at 10 %, twice the first six where these left open on which side of zero it is. Left atrium has
seeds of its own since the last rung is as far as the cost allows, which changes its races and no
others; what was trained before is in docs/results/earlier. Longer trainings have fresh seeds, six
for each comparison at FLOPs, by the same rule."""

ALL_TO_THE_END = 4
"""With how many seeds of a comparison at FLOPs every candidate is trained to the end, in the short
trainings, to see how good the families are and what a race misses."""

FULL_SEEDS = {
    "hippocampus": range(300, 304),
    "modelnet10": range(300, 304),
    "left_atrium": range(400, 402),
    "hippocampus-long": range(500, 504),
    "modelnet10-long": range(500, 504),
    "left_atrium-long": range(500, 502),
}
"""Seeds of the full networks, one or two for each fold."""


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
    racing = Racing(allocator, task.check_ins, default_candidates(limit)[:RACING], task.cost)
    return LoopRuns(allocator, (), {budget: limit}, (), racing)


def _refuse(model: nn.Module, seed: int) -> Iterator[float]:
    raise UsageError("this race is not complete")
    yield 0.0


def methods_of(name: str, budget: str, seed: int) -> tuple[str, ...]:
    """Return what is trained to the end with a seed."""
    first = name not in LONG and seed in SEEDS[name, budget][:ALL_TO_THE_END]
    all_of_them = first and budget.startswith("flops")
    return tuple(dict.fromkeys((*(CANDIDATES if all_of_them else ()), *COMPARED)))


def chosen(only: str) -> list[tuple[str, str]]:
    """Return the comparisons with a text in them."""
    return [(name, budget) for name, budget in SEEDS if only in f"{name}; {budget}"]


def train(store: Store, ledger: Ledger, only: str) -> None:
    """Train what is missing, comparison by comparison and seed by seed.

    A race comes one seed after the others: its second meeting has the next seed, and reads off it.
    """
    for name, budget in chosen(only):
        runs = make_runs(store, name, budget)
        raced = ledger.by_seed(name, budget, RACE)
        left = [seed for seed in SEEDS[name, budget] if seed not in raced]
        for seed in sorted({*SEEDS[name, budget], *(seed + 1 for seed in left)}):
            for method in methods_of(name, budget, seed) if seed in SEEDS[name, budget] else ():
                if method != RACE and seed not in ledger.by_seed(name, budget, method):
                    train_one(runs, store, method, budget, seed)
            if seed - 1 in left:
                train_one(runs, store, RACE, budget, seed - 1)


def train_full(store: Store, ledger: Ledger, only: str) -> None:
    """Train the full networks, which take longest."""
    for name, budget in chosen(only):
        runs = make_runs(store, name, budget)
        for seed in FULL_SEEDS[name]:
            if seed not in ledger.by_seed(name, FULL, FULL):
                train_one(runs, store, FULL, budget, seed)


def train_one(runs: LoopRuns, store: Store, method: str, budget: str, seed: int) -> None:
    """Train one cell, unless it is there or another process is at it."""
    made = runs.allocation(method, budget, seed)
    if not isinstance(made, Allocation):
        return
    loop = runs.allocator.loop
    cell = loop.cell(made.alive, seed)
    if store.missing([cell]):
        store.complete([cell], loop)
        result = store.result(cell)
        if result is not None:
            took = f"{result['accuracy']:.4f} in {result['cpu_seconds']:.0f} s"
            print(loop.name, budget, method, seed, took, flush=True)


def collect(store: Store, ledger: Ledger, only: str) -> None:
    """Add what is trained to the ledger: whole seeds, so that all are compared over the same."""
    for name, budget in chosen(only):
        runs = make_runs(store, name, budget, trains=False)
        for seed in FULL_SEEDS[name]:
            full = runs.result(store, FULL, budget, seed)
            if full is not None:
                ledger.add(name, FULL, FULL, seed, full)
        for seed in SEEDS[name, budget]:
            try:
                found = {
                    method: runs.result(store, method, budget, seed)
                    for method in methods_of(name, budget, seed)
                    if seed not in ledger.by_seed(name, budget, method)
                }
            except UsageError:
                continue
            if None not in found.values():
                for method, result in found.items():
                    ledger.add(name, budget, method, seed, result)


def tables(ledger: Ledger, only: str) -> Iterator[str]:
    """Yield what is known of every comparison, as Markdown."""
    known = [each for each in chosen(only) if ledger.lines(*each)]
    together: dict[tuple[bool, str], list[tuple[str, str]]] = {}
    for name, budget in known:
        together.setdefault((name in LONG, budget.partition("=")[0]), []).append((name, budget))
    for keys in together.values():
        yield from summary(ledger, keys)
    yield from against_full(ledger, known)
    yield from races(ledger, known)
    yield from families(ledger, known)
    yield from ranks(ledger, known)


def summary(ledger: Ledger, known: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the race against the network thinned by hand, a row for each comparison.

    Holm's correction is over all rows: budgets of one resource, trainings of one length.
    """
    columns = (
        *("data", "budget", "seeds", *COMPARED, "race - ranp-f", "race - thin"),
        *("p, t-test", "Holm", "p, sign-flip", "Holm", "class lost"),
    )
    yield " | ".join(columns)
    yield " | ".join(["---"] * 2 + ["---:"] * (len(columns) - 2))
    ahead = {key: difference(ledger, *key, THIN) for key in known}
    holm_t = holm({key: 1.0 if each.p is None else each.p for key, each in ahead.items()})
    holm_flip = holm({key: each.p_flip or 1.0 for key, each in ahead.items()})
    for key in known:
        seeds = ledger.by_seed(*key, RACE)
        means = [mean(ledger.by_seed(*key, method), len(seeds)) for method in COMPARED]
        differences = [interval(difference(ledger, *key, "ranp-f")), interval(ahead[key])]
        tests = (ahead[key].p or 1.0, holm_t[key], ahead[key].p_flip or 1.0, holm_flip[key])
        lost = ", ".join(
            f"{method} {sum(x.lost_a_class for x in ledger.by_seed(*key, method).values())}"
            for method in COMPARED
        )
        cells = [*key, str(len(seeds)), *means, *differences]
        yield " | ".join([*cells, *(f"{p:.3f}" for p in tests), lost])
    yield ""


def against_full(ledger: Ledger, known: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the race against the full network, over the seeds of both."""
    yield "data | budget | seeds | full | race, the same seeds | race - full"
    yield "--- | --- | ---: | ---: | ---: | ---:"
    for name, budget in known:
        full, race = ledger.by_seed(name, FULL, FULL), ledger.by_seed(name, budget, RACE)
        both = [seed for seed in race if seed in full]
        if both:
            theirs, ours = ({seed: x[seed] for seed in both} for x in (full, race))
            behind = fmean(accuracies(ours).values()) - fmean(accuracies(theirs).values())
            means = f"{mean(theirs, len(both))} | {mean(ours, len(both))} | {behind:+.1f}"
            yield f"{name} | {budget} | {len(both)} | {means}"
    yield ""


def races(ledger: Ledger, known: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield what the races chose, how good a choice that was, and what it cost."""
    yield (
        "data | budget | winners | within 0.5 points of the best, or above | worst | "
        "cost of the race, % of the training | its CPU s | CPU s of the training"
    )
    yield "--- | --- | --- | ---: | ---: | ---: | ---: | ---:"
    for key in known:
        won = ledger.by_seed(*key, RACE)
        winners = Counter(race.values["winner"] for race in won.values()).most_common()
        behind = [behind_the_best(ledger, key, seed) for seed in won]
        close = sum(each <= 0.5 for each in behind)
        costs = [100 * float(race.values["race_cost"]) for race in won.values()]
        took = [
            [float(race.values[column]) for race in won.values()]
            for column in ("race_cpu_seconds", "cpu_seconds")
        ]
        cells = [
            *key,
            ", ".join(f"{name} {times}" for name, times in winners),
            f"{close} of {len(behind)}",
            f"{max(behind):.1f}",
            f"{min(costs):.0f} to {max(costs):.0f}",
            *(f"{fmean(each):.0f}" for each in took),
        ]
        yield " | ".join(cells)
    yield ""


def behind_the_best(ledger: Ledger, key: tuple[str, str], seed: int) -> float:
    """Return how far a race's network is below the best other that was trained to the end."""
    ours = ledger.by_seed(*key, RACE)[seed].accuracy
    others = [
        line.accuracy
        for line in ledger.lines(*key)
        if line.seed == seed and line.method in CANDIDATES and line.accuracy is not None
    ]
    assert ours is not None
    return max(0.0, max(others) - ours)


def families(ledger: Ledger, known: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the mean of every candidate, over the seeds with which all were trained to the end.

    The last columns are the best candidate of each seed, which nobody knows before, and how often
    each was it.
    """
    columns = ("data", "budget", "seeds", *CANDIDATES, RACE, "best of each seed", "which")
    yield " | ".join(columns)
    yield " | ".join(["---"] * 2 + ["---:"] * (len(columns) - 3) + ["---"])
    for key in known:
        whole = {seed: final for seed in SEEDS[key] if len(final := ends(ledger, key, seed)) > 1}
        if not whole:
            continue
        means = []
        for method in CANDIDATES:
            found = [final[method] for final in whole.values() if method in final]
            missed = "" if len(found) == len(whole) else f" ({len(found)})"
            means.append(f"{fmean(found):.1f}{missed}")
        races = accuracies(ledger.by_seed(*key, RACE))
        best = {seed: max(final, key=lambda each: final[each]) for seed, final in whole.items()}
        cells = [
            *(*key, str(len(whole)), *means, f"{fmean(races[seed] for seed in whole):.1f}"),
            f"{fmean(whole[seed][name] for seed, name in best.items()):.1f}",
            ", ".join(f"{name} {times}" for name, times in Counter(best.values()).most_common()),
        ]
        yield " | ".join(cells)
    yield ""


def ends(ledger: Ledger, key: tuple[str, str], seed: int) -> dict[str, float]:
    """Return where every candidate ended with a seed, as far as each came down to the budget.

    Empty where not all of them were trained.
    """
    lines = {line.method: line.accuracy for line in ledger.lines(*key) if line.seed == seed}
    if not lines.keys() >= set(CANDIDATES):
        return {}
    found = ((name, lines[name]) for name in CANDIDATES)
    return {name: accuracy for name, accuracy in found if accuracy is not None}


def ranks(ledger: Ledger, known: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the order of all candidates on each rung and at the end, where all were trained."""
    yield "data | budget | seed | on the rungs, by check-ins | at the end, %"
    yield "--- | --- | ---: | --- | ---"
    for key in known:
        races = ledger.by_seed(*key, RACE)
        for seed in SEEDS[key]:
            final = ends(ledger, key, seed)
            order = sorted(final, key=lambda method: -final[method])
            if order:
                at_the_end = ", ".join(f"{name} {final[name]:.1f}" for name in order)
                yield " | ".join([*key, str(seed), races[seed].values["standing"], at_the_end])
    yield ""


def difference(ledger: Ledger, name: str, budget: str, other: str) -> Difference:
    """Return how far the race's networks are from others, over the seeds of both."""
    race, theirs = (accuracies(ledger.by_seed(name, budget, each)) for each in (RACE, other))
    common = [seed for seed in race if seed in theirs]
    return compare_paired([race[seed] for seed in common], [theirs[seed] for seed in common])


def accuracies(lines: dict[int, Trained]) -> dict[int, float]:
    """Return the results in per cent, of the seeds with which a network was trained."""
    return {seed: x.accuracy for seed, x in lines.items() if x.accuracy is not None}


def mean(lines: dict[int, Trained], seeds: int) -> str:
    """Format the mean, with the number of seeds where there are not all of them."""
    found = accuracies(lines)
    if not found:
        return ""
    return f"{fmean(found.values()):.1f}{'' if len(found) == seeds else f' ({len(found)})'}"


def interval(difference: Difference) -> str:
    """Format a difference in points, with its interval."""
    found = difference.summary
    if found.low is None or found.high is None:
        return f"{found.mean:+.1f}"
    return f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=Path("out/proof"))
    parser.add_argument("--ledger", type=Path, default=RESULTS)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--full", action="store_true")
    what.add_argument("--collect", action="store_true")
    what.add_argument("--table", action="store_true")
    parser.add_argument(
        "--only",
        default="",
        help="Only comparisons with this in them, such as 'modelnet10; flops=3%%'.",
    )
    arguments = parser.parse_args()
    ledger, only = Ledger(arguments.ledger), arguments.only
    if arguments.table:
        print("\n".join(tables(ledger, only)))
        return
    torch.set_num_threads(1)
    store = Store(arguments.store)
    if arguments.collect:
        collect(store, ledger, only)
    elif arguments.full:
        train_full(store, ledger, only)
    else:
        train(store, ledger, only)


if __name__ == "__main__":
    main()
