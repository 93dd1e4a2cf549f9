"""Table 1: neuron importance as it is, at its largest feasible sparsity."""

from __future__ import annotations

from ranp.experiments.paper import capability, printed
from ranp.experiments.reproduce import fig_importance, table_capability
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.rows import Made, Outcome, about_data, columns, row_of
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell
from ranp.report.table import ComparisonTable

_TITLES = {
    "table-vanilla": "Table 1: vanilla NP by max neuron sparsity",
    "table-vanilla-full": "Table 6: vanilla NP by max neuron sparsity, all six measures",
}


def made(study: Study, pair: Pair, method: str) -> Made:
    """A measure's networks, at the largest sparsity that leaves a neuron in every layer."""
    chosen = [study.choice(pair, method, Amount(of_largest=1.0), seed) for seed in study.each_seed]
    trained = [study.training(pair, plan, seed) for seed, plan in enumerate(chosen)]
    return Made(tuple(chosen), tuple(trained) if study.trains(pair) else ())


def _at_papers_sparsity(study: Study, pair: Pair, method: str, sparsity: float) -> Made:
    """The same at the paper's own largest sparsity, so that resources can be compared."""
    amount = Amount(sparsity=sparsity)
    return Made(tuple(study.choice(pair, method, amount, seed) for seed in study.each_seed))


def cells(study: Study, name: str = "table-vanilla") -> list[Cell]:
    """The cells of one of the two tables."""
    found: list[Cell] = []
    for pair in study.pairs(FOUR):
        found += table_capability.made(study, pair, "full").cells
        for method, row in printed()[name][pair.name].items():
            found += made(study, pair, method).cells
            if study.at_paper_size:
                found += _at_papers_sparsity(study, pair, method, row["sparsity"]).cells
    return found


def show(study: Study, name: str = "table-vanilla") -> Outcome:
    """One of the two tables."""
    pairs, rows = study.pairs(FOUR), []
    for pair in pairs:
        full = table_capability.made(study, pair, "full")
        rows.append(row_of(study, pair, "Full", full, capability(pair.name)["full"], exact=True))
        for method, row in printed()[name][pair.name].items():
            label = "MPMG-sum" if method == "vanilla" else method.upper()[:5] + method[5:]
            rows.append(row_of(study, pair, label, made(study, pair, method), row))
            if study.at_paper_size:
                same = _at_papers_sparsity(study, pair, method, row["sparsity"])
                there = f"{label} at {100 * row['sparsity']:.2f} %"
                rows.append(row_of(study, pair, there, same, {**row, "metrics": {}}))
    return Outcome(
        ComparisonTable(
            _TITLES[name],
            tuple(columns(study, pairs)),
            tuple(rows),
            (*about_data(study, pairs), fig_importance.BEHIND_BATCH_NORM),
            printed()["tolerance"],
            checked=study.at_paper_size,
        )
    )
