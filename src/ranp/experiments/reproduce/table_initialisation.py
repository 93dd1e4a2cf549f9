"""Table 7: orthogonal against Glorot initialization."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ranp.experiments.paper import printed
from ranp.experiments.reproduce import table_capability, tables
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study
from ranp.report.table import Column, Figure

_LABELS = {"vanilla": "Vanilla", "ranp-f": "RANP-f", "orthogonal": "ort", "fresh": "xn"}


def _rows(study: Study, pair: Pair) -> Iterator[tables.TableRow]:
    table = printed()["table-initialisation"][pair.name]
    amount = Amount(sparsity=table["sparsity"] if study.at_paper_size else study.sparsity(pair))
    yield table_capability.make_row(study, pair, "full", train=False)
    for method, weights in product(("vanilla", "ranp-f"), ("orthogonal", "fresh")):
        pruned, largest = (
            tables.make_row_cells(study, pair, method, each, weights=weights, train=False)
            for each in (amount, Amount(of_largest=1.0))
        )
        yield tables.TableRow(
            pair,
            f"{_LABELS[method]}-{_LABELS[weights]}",
            pruned,
            {"sparsity": table["sparsity"], **table["rows"][f"{method}-{weights}"]},
            figures=_figures,
            parts=largest.choices,
        )


def _figures(study: Study, row: tables.TableRow) -> dict[str, Figure]:
    largest = tables.result_figure(study, row.parts, "largest", 100)
    return {**tables.paper_figures(study, row), "largest": largest}


def declare(study: Study, name: str) -> tables.Exhibit:
    """Return the table."""
    pairs = study.pairs(FOUR)
    largest = Column("largest", "Largest feasible sparsity (%)", points=True)
    return tables.make_exhibit(
        study,
        "Table 7: impact of parameter initialization on neuron pruning",
        [row for pair in pairs for row in _rows(study, pair)],
        pairs,
        [*tables.make_columns(study, ()), largest],
        about="ort: orthogonal; xn: Glorot.",
    )
