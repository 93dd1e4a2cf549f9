"""Comparisons whose outcome is known: nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ranp.experiments.evaluation import evaluate
from ranp.experiments.recipe_runs import RecipeRuns
from ranp.resources.budgets import Budget
from ranp.training.config import load_config
from ranp.trials.store import Store

FULL = {"gflops": 2.0, "memory_mb": 40.0, "parameters": 5000, "param_mb": 0.02, "neurons": 50}
BUDGETS = {"gflops=10%": Budget("gflops", 0.2), "gflops=3%": Budget("gflops", 0.06)}


def outcome(cell: Mapping[str, Any], accuracy: float | str) -> dict[str, Any]:
    """The result of a cell that comes to an accuracy, or to an outcome without one."""
    amount = FULL["gflops"] if cell["budget"] is None else cell["budget"]["amount"]
    over = 1.5 if accuracy == "unreachable" else 1.02
    gflops = amount if cell["budget"] is None else amount * over
    described = {
        **FULL,
        "gflops": gflops,
        "deviation": None if cell["budget"] is None else gflops / amount - 1,
        "sparsity": None if cell["budget"] is None else 0.7,
        "full": FULL,
    }
    if isinstance(accuracy, str):
        return {**described, "outcome": accuracy, "reason": f"it is {accuracy}"}
    return {
        **described,
        "outcome": "trained",
        "goal": "dice",
        "accuracy": accuracy,
        "metrics": {
            "dice": {"mean": accuracy, "std": 0.0, "last": accuracy},
            "dice anterior": {"mean": accuracy, "std": 0.0, "last": accuracy - 0.1},
        },
        "step_mb": 12.5,
        "seconds": 30.0 if cell["budget"] is None else 10.0,
        "cpu_seconds": 20.0,
        "device": "cpu",
    }


def design(
    methods: Sequence[str], seeds: int, budgets: Sequence[str] = tuple(BUDGETS)
) -> RecipeRuns:
    config = load_config("hippocampus-unet3d")
    chosen = {text: BUDGETS[text] for text in budgets}
    return RecipeRuns(config, tuple(methods), chosen, tuple(range(seeds)))


def filled(
    directory: Path, plan: RecipeRuns, accuracies: Mapping[str, Sequence[float | str | None]]
) -> Store:
    """A store with results: by method, an accuracy or another outcome for each seed."""
    store = Store(directory)
    for budget in plan.budgets:
        for method, values in accuracies.items():
            for seed, value in zip(plan.seeds, values, strict=False):
                if value is not None:
                    cell = plan.cell(method, budget, seed)
                    store.complete([cell], lambda cell, place, v=value: outcome(cell, v))
    return store


def compared(
    directory: Path,
    accuracies: Mapping[str, Sequence[float | str | None]],
    budgets: Sequence[str] = ("gflops=10%",),
) -> dict[str, Any]:
    """The result of a comparison with these accuracies."""
    plan = design(list(accuracies), max(map(len, accuracies.values())), budgets)
    return evaluate(plan, filled(directory, plan, accuracies))
