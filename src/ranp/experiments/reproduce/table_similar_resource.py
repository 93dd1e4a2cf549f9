"""Table 3: baselines brought to what RANP-f costs, in FLOPs or in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ranp.experiments.paper import capability, printed
from ranp.experiments.reproduce import table_capability, tables
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study
from ranp.report.table import Column, Figure

BASELINES = [(m, resource) for resource in ("gflops", "memory") for m in ("random", "layerwise")]
"""Method and budgeted resource of every baseline."""

_KEYS = {"gflops": "gflops", "memory": "memory_mb"}
_UNITS = {"gflops": "GFLOPs", "memory": "MB of memory"}


def printed_row(pair: Pair, method: str, resource: str) -> dict[str, Any] | None:
    """Return the row that the paper prints of a baseline; it prints some of them."""
    rows = printed()["table-similar-resource"].get(pair.name, ())
    found = (r for r in rows if (r["method"], r["resource"]) == (method, resource))
    return next(found, None)


def make_row(study: Study, pair: Pair, method: str, resource: str) -> tables.TableRow:
    """Return the row of a baseline at the cost of RANP-f with the same seed."""
    reference = (study.sparsity(pair), study.config(pair).pruning.lam)
    amount = Amount(resource=resource, ranp_f=reference)
    return tables.TableRow(
        pair,
        f"{tables.LABELS[method]} at RANP-f's {_UNITS[resource]}",
        tables.make_row_cells(study, pair, method, amount),
        printed_row(pair, method, resource) or {},
        figures=_figures,
    )


def make_row_at_papers_budget(
    study: Study, pair: Pair, method: str, resource: str
) -> tables.TableRow:
    """Return the row at the cost of the paper's RANP-f: it depends on no data."""
    budget = capability(pair.name)["ranp-f"][_KEYS[resource]]
    amount = Amount(resource=resource, budget=budget)
    return tables.TableRow(
        pair,
        f"{tables.LABELS[method]} at the paper's {budget} {_UNITS[resource]}",
        tables.make_row_cells(study, pair, method, amount, one_draw=True, train=False),
        {**(printed_row(pair, method, resource) or {}), "metrics": {}},
        figures=_figures,
    )


def _figures(study: Study, row: tables.TableRow) -> dict[str, Figure]:
    worst = max(tables.result_figure(study, row.cells.choices, "deviation", 100).ours, key=abs)
    return {**tables.paper_figures(study, row), "off": Figure((worst,))}


def _rows(study: Study, pair: Pair) -> Iterator[tables.TableRow]:
    yield table_capability.make_row(study, pair, "ranp-f")
    for method, resource in BASELINES:
        yield make_row(study, pair, method, resource)
    for method, resource in BASELINES:
        if study.at_paper_size and printed_row(pair, method, resource) is not None:
            yield make_row_at_papers_budget(study, pair, method, resource)


def declare(study: Study, name: str) -> tables.Exhibit:
    """Return the table."""
    pairs = study.pairs(FOUR)
    return tables.make_exhibit(
        study,
        "Table 3: baselines with similar GFLOPs or memory",
        [row for pair in pairs for row in _rows(study, pair)],
        pairs,
        [*tables.make_columns(study, pairs), Column("off", "off the budget (%), at worst")],
        about="A baseline is brought to the budget by bisection on its sparsity. Where a step is "
        "coarse, since many layers get their next neuron at once (layer-wise NP) or a "
        "single neuron costs much (random NP), the neurons next in line are given back one "
        "by one, the most expensive first, until less than 0.1 % of the budget is left.",
    )
