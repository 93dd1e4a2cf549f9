"""Table 2: what every method leaves of four networks, and how well that learns."""

from __future__ import annotations

from ranp.experiments.paper import capability
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.rows import (
    LABELS,
    Exhibit,
    TableRow,
    make_columns,
    make_exhibit,
    make_row_cells,
)
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study


def make_row(study: Study, pair: Pair, method: str, *, train: bool = True) -> TableRow:
    """Return the row of a method at the paper's sparsity."""
    row = capability(pair.name)[method]
    exact = row["check"] == "exact"
    pruned_by = {"snip": pair.snip}.get(method, method)
    amount = None
    if method != "full":
        # Rows that depend on no data are printed with their own sparsity.
        theirs = exact and study.at_paper_size
        amount = Amount(sparsity=row["sparsity"] if theirs else study.sparsity(pair, pruned_by))
    # The paper's random row is one draw, that of seed 0.
    cells = make_row_cells(study, pair, pruned_by, amount, one_draw=exact, train=train)
    return TableRow(pair, LABELS[method], cells, row, exact)


def declare(
    study: Study, name: str, title: str = "Table 2: evaluation of neuron pruning capability"
) -> Exhibit:
    """Return the table."""
    pairs = study.pairs(FOUR)
    rows = [make_row(study, pair, method) for pair in pairs for method in LABELS]
    return make_exhibit(study, title, rows, pairs, make_columns(study, pairs))
