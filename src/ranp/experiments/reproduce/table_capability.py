"""Table 2: what every method leaves of four networks, and how well that learns."""

from __future__ import annotations

from ranp.experiments.paper import capability
from ranp.experiments.reproduce import tables
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study


def make_row(study: Study, pair: Pair, method: str, *, train: bool = True) -> tables.TableRow:
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
    cells = tables.make_row_cells(study, pair, pruned_by, amount, one_draw=exact, train=train)
    return tables.TableRow(pair, tables.LABELS[method], cells, row, exact)


def declare(
    study: Study, name: str, title: str = "Table 2: evaluation of neuron pruning capability"
) -> tables.Exhibit:
    """Return the table."""
    pairs = study.pairs(FOUR)
    rows = [make_row(study, pair, method) for pair in pairs for method in tables.LABELS]
    return tables.make_exhibit(study, title, rows, pairs, tables.make_columns(study, pairs))
