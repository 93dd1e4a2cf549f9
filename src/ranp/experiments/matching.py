"""What is compared: methods, the one that others are compared with, and matched budgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ranp.errors import UsageError, suggest
from ranp.experiments.cells import FULL
from ranp.pruning import find_method
from ranp.resources import Costs
from ranp.resources.budgets import RESOURCES, Budget, find_resource, parse_budget
from ranp.trials.candidates import THIN
from ranp.trials.store import Cell

REFERENCE = "ranp-f"

SAME_AT_A_BUDGET = {"flat": "layerwise", THIN: "layerwise"}
"""One width for all layers and the same share of every layer are the same at the same cost."""


def choose_reference(methods: Sequence[str], preferred: Sequence[str] = (REFERENCE,)) -> str | None:
    """Return the method that the others are compared with; None if nothing is pruned.

    That is the first of the preferred ones that takes part, else the first that prunes.
    """
    pruned = [name for name in methods if name != FULL]
    return next((name for name in (*preferred, *pruned) if name in pruned), None)


def parse_budget_text(text: str) -> Budget:
    """Return the budget for a text such as "flops=10%", "gflops=5" or "activations=200MB".

    Raises:
        UsageError: Not a resource that is counted, or not a positive amount.
    """
    name, separator, amount = text.partition("=")
    counted = [each for each, row in RESOURCES.items() if row.total is not None]
    if not separator or name not in counted:
        hint = suggest(name, counted) if separator else ""
        examples = [f"{each}={find_resource(each).example}" for each in counted]
        raise UsageError(f"--budget {text}: write flops=10%, or {', '.join(examples)}.{hint}")
    budget = parse_budget(name, amount)
    if name == "flops":  # the same cells as for gflops, to the last bit
        unit = 1 if budget.of_full else 1e9
        return replace(budget, resource="gflops", limit=budget.limit / unit)
    return budget


def absolute_budget(text: str, full: Costs) -> Budget:
    """Return the budget for a text in absolute figures, by what the full network costs.

    Raises:
        UsageError: The full network keeps it already.
    """
    budget = parse_budget_text(text)
    whole = Budget(budget.resource, budget.total(full))
    budget = budget.absolute(whole.limit)
    if budget.limit >= whole.limit:
        raise UsageError(
            f"--budget {text}: the full network costs {whole} and keeps it without pruning; give a "
            "smaller one"
        )
    return budget


def checked_methods(names: Sequence[str], also: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of methods, "full" and `also` among them, each once.

    Raises:
        UsageError: An unknown one, or none that prunes.
    """
    if isinstance(names, str):
        raise UsageError(f"methods must be a list of names, got '{names}'; write ['{names}']")
    for name in names:
        if name not in (FULL, *also):
            find_method(name, also=(FULL, *also))
    if all(name == FULL for name in names):
        raise UsageError("name at least one method that prunes, such as ranp-f")
    return tuple(dict.fromkeys(names))


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Return cells in their order, each once."""
    return list({repr(cell): cell for cell in cells}.values())
