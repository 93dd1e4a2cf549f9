"""Table 2: what every method leaves of four networks, and how well that learns."""

from __future__ import annotations

from ranp.experiments.paper import capability, printed
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.rows import (
    LABELS,
    Made,
    Outcome,
    about_data,
    columns,
    row_of,
)
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell
from ranp.report.table import ComparisonTable

METHODS = tuple(LABELS)


def made(study: Study, pair: Pair, method: str) -> Made:
    """The cells of a row: a method's networks, at the paper's sparsity."""
    seeds = study.each_seed
    if method == "full":
        trained = [study.training(pair, None, seed) for seed in seeds]
        return Made((study.full(pair),), tuple(trained) if study.trains(pair) else ())
    if method in ("random", "layerwise"):
        # The paper's row is one draw, that of seed 0; of the same share there is but one anyhow.
        row = capability(pair.name)[method]
        sparsity = row["sparsity"] if study.at_paper_size else study.sparsity(pair)
        chosen = [study.choice(pair, method, Amount(sparsity=sparsity), 0)] * len(seeds)
    else:
        amount = Amount(sparsity=study.sparsity(pair, method))
        chosen = [study.choice(pair, method, amount, seed) for seed in seeds]
    trained = [study.training(pair, plan, s) for s, plan in zip(seeds, chosen, strict=True)]
    single = method in ("random", "layerwise")
    return Made(
        tuple(chosen[:1] if single else chosen), tuple(trained) if study.trains(pair) else ()
    )


def cells(study: Study) -> list[Cell]:
    """All rows' cells."""
    pairs = study.pairs(FOUR)
    return [
        cell for pair in pairs for method in METHODS for cell in made(study, pair, method).cells
    ]


def table(study: Study, title: str) -> ComparisonTable:
    """The table, under a title."""
    pairs = study.pairs(FOUR)
    rows = []
    for pair in pairs:
        paper = capability(pair.name)
        for method in METHODS:
            row, cells_of_row = paper[method], made(study, pair, method)
            exact = row["check"] == "exact"
            rows.append(row_of(study, pair, LABELS[method], cells_of_row, row, exact=exact))
    return ComparisonTable(
        title,
        tuple(columns(study, pairs)),
        tuple(rows),
        about_data(study, pairs),
        printed()["tolerance"],
        checked=study.at_paper_size,
    )


def show(study: Study) -> Outcome:
    """The table."""
    return Outcome(table(study, "Table 2: evaluation of neuron pruning capability"))
