"""Tables 1 and 6: neuron importance as it is, at its largest feasible sparsity."""

from __future__ import annotations

from collections.abc import Iterator

from ranp.experiments.paper import printed
from ranp.experiments.reproduce import fig_importance, table_capability, tables
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study

_TITLES = {
    "table-vanilla": "Table 1: vanilla NP by max neuron sparsity",
    "table-vanilla-full": "Table 6: vanilla NP by max neuron sparsity, all six measures",
}


def _rows(study: Study, pair: Pair, name: str) -> Iterator[tables.TableRow]:
    yield table_capability.make_row(study, pair, "full")
    for method, row in printed()[name][pair.name].items():
        label = "MPMG-sum" if method == "vanilla" else method.upper()[:5] + method[5:]
        largest = tables.make_row_cells(study, pair, method, Amount(of_largest=1.0))
        yield tables.TableRow(pair, label, largest, row)
        if study.at_paper_size:  # at the paper's own sparsity resources can be compared
            amount = Amount(sparsity=row["sparsity"])
            same = tables.make_row_cells(study, pair, method, amount, train=False)
            there = f"{label} at {100 * row['sparsity']:.2f} %"
            yield tables.TableRow(pair, there, same, {**row, "metrics": {}})


def declare(study: Study, name: str) -> tables.Exhibit:
    """Return one of the two tables."""
    pairs = study.pairs(FOUR)
    return tables.make_exhibit(
        study,
        _TITLES[name],
        [row for pair in pairs for row in _rows(study, pair, name)],
        pairs,
        tables.make_columns(study, pairs),
        about=fig_importance.BEHIND_BATCH_NORM,
    )
