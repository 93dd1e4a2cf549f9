"""Table 7: orthogonal against Glorot initialisation."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from ranp.experiments.paper import capability, printed
from ranp.experiments.reproduce import table_capability
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.rows import Made, Outcome, about_data, columns, row_of
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell
from ranp.report.table import Column, ComparisonTable, Figure

_ROWS = tuple(product(("vanilla", "ranp-f"), ("orthogonal", "fresh")))
_LABELS = {"vanilla": "Vanilla", "ranp-f": "RANP-f", "orthogonal": "ort", "fresh": "xn"}


def made(study: Study, pair: Pair, method: str, weights: str, amount: Amount) -> Made:
    """A method's networks, scored with one initialisation."""
    return Made(
        tuple(study.choice(pair, method, amount, seed, weights=weights) for seed in study.each_seed)
    )


def _amount(study: Study, pair: Pair) -> Amount:
    table = printed()["table-initialisation"][pair.name]
    return Amount(sparsity=table["sparsity"] if study.at_paper_size else study.sparsity(pair))


def cells(study: Study) -> list[Cell]:
    """All rows' cells."""
    found: list[Cell] = []
    for pair in study.pairs(FOUR):
        found.append(study.full(pair))
        for method, weights in _ROWS:
            for amount in (_amount(study, pair), Amount(of_largest=1.0)):
                found += made(study, pair, method, weights, amount).cells
    return found


def show(study: Study) -> Outcome:
    """The table."""
    pairs, rows = study.pairs(FOUR), []
    for pair in pairs:
        table = printed()["table-initialisation"][pair.name]
        full = replace(table_capability.made(study, pair, "full"), trainings=())
        rows.append(row_of(study, pair, "Full", full, capability(pair.name)["full"], exact=True))
        for method, weights in _ROWS:
            printed_row = {"sparsity": table["sparsity"], **table["rows"][f"{method}-{weights}"]}
            pruned = made(study, pair, method, weights, _amount(study, pair))
            row = row_of(study, pair, f"{_LABELS[method]}-{_LABELS[weights]}", pruned, printed_row)
            largest = made(study, pair, method, weights, Amount(of_largest=1.0))
            found = tuple(100 * study.result(cell)["largest"] for cell in largest.choices)
            rows.append(replace(row, figures={**row.figures, "largest": Figure(found)}))
    return Outcome(
        ComparisonTable(
            "Table 7: impact of parameter initialization on neuron pruning",
            (*columns(study, ()), Column("largest", "Largest feasible sparsity (%)", points=True)),
            tuple(rows),
            (*about_data(study, pairs), "ort: orthogonal; xn: Glorot."),
            printed()["tolerance"],
            checked=study.at_paper_size,
        )
    )
