"""What runs of several methods and seeds support: rows, intervals, tests and conclusions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ranp.experiments.cells import FULL, store_budget
from ranp.experiments.matching import SAME_AT_A_BUDGET
from ranp.experiments.statistics import (
    Difference,
    compare_paired,
    conclude,
    describe_difference,
    holm,
    least_flip_p,
    summarise,
)
from ranp.files import write_sealed_json, write_text
from ranp.report.comparison import render_comparison
from ranp.report.comparison_tables import markdown, page, runs_csv, summary_csv
from ranp.trials.candidates import THIN
from ranp.trials.store import Store, versions

if TYPE_CHECKING:
    from ranp.experiments.loop_runs import LoopRuns
    from ranp.experiments.recipe_runs import RecipeRuns

UNEQUAL = 0.05
"""Deviation from a budget above which a comparison carries a caution."""

Accuracies = Mapping[str, Mapping[int, float]]
"""Accuracy by method and seed."""

_UNITS = {"gflops": "GFLOPs", "memory": "MB", "params": "parameters"}
_MEANS = (
    *("gflops", "memory_mb", "parameters", "step_mb", "seconds", "cpu_seconds"),
    *("sparsity", "deviation"),
)


def evaluate(runs: RecipeRuns | LoopRuns, store: Store) -> dict[str, Any]:
    """Return what came out as plain values: all methods at every budget.

    Runs that are not complete are left out, and counted.
    """
    cells = runs.cells()
    found = {
        text: {
            method: {
                seed: result
                for seed in runs.seeds
                if (result := runs.result(store, method, text, seed)) is not None
            }
            for method in runs.methods
        }
        for text in runs.budgets
    }
    results = [
        result
        for by_method in found.values()
        for by_seed in by_method.values()
        for result in by_seed.values()
    ]
    trained = [result for result in results if result["outcome"] == "trained"]
    return {
        "schema": 1,
        "kind": "comparison",
        "recipe": runs.title,
        "config": runs.settings,
        "seeds": list(runs.seeds),
        "reference": runs.reference,
        "goal": trained[0]["goal"] if trained else None,
        "device": trained[0]["device"] if trained else None,
        "full": results[0]["full"] if results else None,
        "cells": len(cells),
        "complete": sum(store.result(cell) is not None for cell in cells),
        "budgets": [_at_budget(runs, text, by_method) for text, by_method in found.items()],
        "versions": versions(),
    }


def write_comparison(result: Mapping[str, Any], out: Path, command: str) -> list[Path]:
    """Write a result as Markdown, CSV and JSON; if anything was trained, as a page and a picture.

    The page shows the command that makes it again. Returns the files that were written; the picture
    is among them if matplotlib is installed.
    """
    texts = {
        "comparison.md": markdown(result),
        "comparison.csv": summary_csv(result),
        "runs.csv": runs_csv(result),
    }
    files = [write_text(out / name, text) for name, text in texts.items()]
    files.append(out / "comparison.json")
    write_sealed_json(files[-1], result)
    if any(row["accuracy"] for at in result["budgets"] for row in at["rows"]):
        content = page(result, title=f"Methods compared: {result['recipe']}", command=command)
        files.append(write_text(out / "comparison.html", render_comparison(content)))
        if find_spec("matplotlib") is not None:
            from ranp.report.comparison_figure import draw_comparison

            files.append(out / "comparison.svg")
            draw_comparison(files[-1], result)
    return files


def _at_budget(
    runs: RecipeRuns | LoopRuns, text: str, by_method: Mapping[str, Mapping[int, dict[str, Any]]]
) -> dict[str, Any]:
    accuracies = {
        method: {
            seed: run["accuracy"] for seed, run in by_seed.items() if run["outcome"] == "trained"
        }
        for method, by_seed in by_method.items()
    }
    # The same network under two names is one test, not two to be corrected for.
    called = _one_name_each(accuracies, runs)
    distinct = {name: values for name, values in accuracies.items() if called[name] == name}
    tested = _differences(distinct, runs.reference)
    differences = {name: tested[called[name]] for name in accuracies if called[name] in tested}
    seeds = len(accuracies.get(runs.reference or "", {}))
    stored = store_budget(runs.budgets[text])
    return {
        "budget": text,
        **stored,
        "unit": _UNITS.get(stored["resource"], stored["resource"]),
        "rows": [
            {
                "method": method,
                "same_as": runs.same_networks.get(method),
                **_row(by_seed, differences.get(method)),
            }
            for method, by_seed in by_method.items()
        ],
        "least_flip_p": least_flip_p(seeds),
        "against_full": _against(runs.reference, FULL, "the full network", accuracies, differences),
        "against_thin": _against_thin(runs.reference, accuracies, differences),
        "conclusion": conclude(runs.reference, tested, seeds),
        "cautions": _cautions({name: by_method[name] for name in distinct}),
    }


def _one_name_each(methods: Iterable[str], runs: RecipeRuns | LoopRuns) -> dict[str, str]:
    """Return the method that stands for the network of each: the reference, if it is the same."""
    same = runs.same_networks
    names = sorted(methods, key=lambda name: (name != runs.reference, name in same))
    first = {same.get(name, name): name for name in reversed(names)}
    return {name: first[same.get(name, name)] for name in names}


def _against_thin(
    reference: str | None,
    accuracies: Accuracies,
    differences: Mapping[str, Difference],
) -> str:
    """Return the first sentence of a comparison: how the reference does against thin."""
    thin = next((name for name in (THIN, SAME_AT_A_BUDGET[THIN]) if name in accuracies), None)
    is_thin = reference in (THIN, SAME_AT_A_BUDGET[THIN])
    if reference is None or is_thin or not accuracies.get(reference):
        return ""
    return _against(reference, thin, "thinning by hand", accuracies, differences) or (
        f"{reference} cannot be compared with thinning by hand: there are no runs of thin with "
        "the same seeds; add it to the methods."
    )


def _against(
    reference: str | None,
    other: str | None,
    called: str,
    accuracies: Accuracies,
    differences: Mapping[str, Difference],
) -> str:
    """Return a sentence on the reference and another network; none where one was not trained."""
    ours, theirs = accuracies.get(reference or "", {}), accuracies.get(other or "", {})
    difference = _paired(ours, theirs)
    if reference is None or other is None or difference is None:
        return ""
    tested = differences.get(other)
    corrected = None if tested is None else tested.p_holm
    return describe_difference(reference, called, replace(difference, p_holm=corrected))


def _differences(accuracies: Accuracies, reference: str | None) -> dict[str, Difference]:
    """Compare every method with the reference, over the seeds that both were trained with."""
    ours = accuracies.get(reference or "", {})
    differences = {
        method: difference
        for method, theirs in accuracies.items()
        if method != reference and (difference := _paired(theirs, ours)) is not None
    }
    corrected = holm({name: d.p for name, d in differences.items() if d.p is not None})
    return {name: replace(d, p_holm=corrected.get(name)) for name, d in differences.items()}


def _paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Compare ours with theirs over the seeds that both were trained with; None without any."""
    common = [seed for seed in theirs if seed in ours]
    return (
        compare_paired([ours[s] for s in common], [theirs[s] for s in common]) if common else None
    )


def _row(runs: Mapping[int, dict[str, Any]], difference: Difference | None) -> dict[str, Any]:
    trained = [run for run in runs.values() if run["outcome"] == "trained"]
    shown = trained or list(runs.values())
    metrics = [
        name
        for name in (trained[0]["metrics"] if trained else ())
        if all(name in run["metrics"] for run in trained)
    ]
    return {
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
        "difference": None if difference is None else difference.to_dict(),
        "runs": [{"seed": seed, **run} for seed, run in runs.items()],
    }


def _cautions(runs: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> list[str]:
    """Return what a reader of the table must know."""
    cautions = []
    for method, by_seed in runs.items():
        unreachable = [run for run in by_seed.values() if run["outcome"] == "unreachable"]
        if unreachable:
            nearest = min(run["deviation"] for run in unreachable)
            cautions.append(
                f"{method} cannot reach this budget with {len(unreachable)} of "
                f"{len(by_seed)} seeds; the closest costs {100 * nearest:.1f} % more."
            )
        diverged = [run for run in by_seed.values() if run["outcome"] == "diverged"]
        if diverged:
            cautions.append(f"{method} diverged with {len(diverged)} of {len(by_seed)} seeds.")
        off = [
            run["deviation"]
            for run in by_seed.values()
            if run["outcome"] == "trained" and abs(run["deviation"] or 0.0) > UNEQUAL
        ]
        if off:
            worst = max(off, key=abs)
            cautions.append(
                f"{method} misses the budget by up to {100 * worst:+.1f} %: "
                "single neurons make no finer steps."
            )
    outdated = {m: sum(run["outdated"] for run in by_seed.values()) for m, by_seed in runs.items()}
    if named := [f"{m} ({n} of {len(runs[m])} seeds)" for m, n in outdated.items() if n]:
        cautions.append(
            f"Computed by another version of the code: {', '.join(named)}; --recompute computes "
            "them again."
        )
    return cautions
