"""Table 3: baselines brought to what RANP-f costs, in FLOPs or in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ranp.experiments.paper import capability, printed
from ranp.experiments.reproduce import table_capability
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.rows import Made, Outcome, about_data, columns, row_of
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell
from ranp.report.table import Column, ComparisonTable, Figure, Row

_ROWS = (
    ("random", "gflops"),
    ("layerwise", "gflops"),
    ("random", "memory"),
    ("layerwise", "memory"),
)
_KEYS = {"gflops": "gflops", "memory": "memory_mb"}


def made(study: Study, pair: Pair, method: str, resource: str) -> Made:
    """A baseline at what RANP-f of the same seed costs."""
    reference = (study.sparsity(pair), study.config(pair).pruning.lam)
    amount = Amount(resource=resource, ranp_f=reference)
    chosen = [study.choice(pair, method, amount, seed) for seed in study.each_seed]
    trained = [study.training(pair, plan, seed) for seed, plan in enumerate(chosen)]
    return Made(tuple(chosen), tuple(trained) if study.trains(pair) else ())


def _at_papers_budget(study: Study, pair: Pair, method: str, resource: str) -> Made:
    """A baseline at what the paper's RANP-f costs: it depends on no data, and can be compared."""
    budget = capability(pair.name)["ranp-f"][_KEYS[resource]]
    amount = Amount(resource=resource, budget=budget)
    return Made((study.choice(pair, method, amount, 0),))


def _printed(pair: Pair, method: str, resource: str) -> dict[str, Any] | None:
    rows = printed()["table-similar-resource"].get(pair.name, ())
    found = (r for r in rows if (r["method"], r["resource"]) == (method, resource))
    return next(found, None)


def cells(study: Study) -> list[Cell]:
    """All rows' cells."""
    found: list[Cell] = []
    for pair in study.pairs(FOUR):
        found += table_capability.made(study, pair, "ranp-f").cells
        for method, resource in _ROWS:
            found += made(study, pair, method, resource).cells
            if study.at_paper_size and _printed(pair, method, resource) is not None:
                found += _at_papers_budget(study, pair, method, resource).cells
    return found


def show(study: Study) -> Outcome:
    """The table."""
    pairs, rows = study.pairs(FOUR), []
    for pair in pairs:
        ranp = table_capability.made(study, pair, "ranp-f")
        rows.append(row_of(study, pair, "RANP-f", ranp, capability(pair.name)["ranp-f"]))
        for method, resource in _ROWS:
            row = _printed(pair, method, resource)
            name = f"{_name(method)} at RANP-f's {_unit(resource)}"
            baseline = made(study, pair, method, resource)
            rows.append(_matched(study, row_of(study, pair, name, baseline, row), baseline))
        for method, resource in _ROWS if study.at_paper_size else ():
            row = _printed(pair, method, resource)
            if row is None:
                continue
            budget = capability(pair.name)["ranp-f"][_KEYS[resource]]
            name = f"{_name(method)} at the paper's {budget} {_unit(resource)}"
            baseline = _at_papers_budget(study, pair, method, resource)
            shown = row_of(study, pair, name, baseline, {**row, "metrics": {}})
            rows.append(_matched(study, shown, baseline))
    off = Column("off", "off the budget (%), at worst")
    return Outcome(
        ComparisonTable(
            "Table 3: baselines with similar GFLOPs or memory",
            (*columns(study, pairs), off),
            tuple(rows),
            (
                *about_data(study, pairs),
                "A baseline is brought to the budget by bisection on its sparsity. Where a step is "
                "coarse, since many layers get their next neuron at once (layer-wise NP) or a "
                "single neuron costs much (random NP), the neurons next in line are given back one "
                "by one, the dearest first, until less than 0.1 % of the budget is left.",
            ),
            printed()["tolerance"],
            checked=study.at_paper_size,
        )
    )


def _matched(study: Study, row: Row, baseline: Made) -> Row:
    """The row with how far its networks are from their budgets."""
    worst = max((100 * study.result(cell)["deviation"] for cell in baseline.choices), key=abs)
    return replace(row, figures={**row.figures, "off": Figure((worst,))})


def _name(method: str) -> str:
    return "Random NP" if method == "random" else "Layer-wise NP"


def _unit(resource: str) -> str:
    return "GFLOPs" if resource == "gflops" else "MB of memory"
