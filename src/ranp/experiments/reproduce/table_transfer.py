"""Table 4: networks pruned on one data set and trained on the other."""

from __future__ import annotations

from ranp.experiments.paper import printed
from ranp.experiments.reproduce.choices import Amount, transfer_cell
from ranp.experiments.reproduce.rows import Made, Outcome, about_data, columns, row_of
from ranp.experiments.reproduce.scales import PAIRS, Pair, input_shape
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell
from ranp.report.table import ComparisonTable

_DEEP = (PAIRS["unet3d-23-shapenet"], PAIRS["unet3d-23-brats"])
_LABELS = {"full": "Full", "ranp-f": "RANP-f", "t-ranp-f": "T-RANP-f"}


def made(study: Study, pair: Pair, row: str) -> Made:
    """The cells of a row on one data set."""
    seeds = study.each_seed
    if row == "full":
        trained = [study.training(pair, None, seed) for seed in seeds]
        return Made((study.full(pair),), tuple(trained) if study.trains(pair) else ())
    if row == "ranp-f":
        plans = [_pruned(study, pair, seed) for seed in seeds]
        trained = [study.training(pair, plan, s) for s, plan in zip(seeds, plans, strict=True)]
        return Made(tuple(plans), tuple(trained) if study.trains(pair) else ())
    source = next(other for other in _DEEP if other != pair)
    plans = [_pruned(study, source, seed) for seed in seeds]
    # The architecture is taken over: the other network's widths, with this one's ends.
    width = study.config(source).network.options["base_width"]
    config = study.config(pair, network__options__base_width=width)
    trained = [
        study.training(pair, plan, seed, transfer=True, network__options__base_width=width)
        for seed, plan in zip(seeds, plans, strict=True)
    ]
    moved = [transfer_cell(config, input_shape(config), plan) for plan in plans]
    return Made(tuple(moved), tuple(trained) if study.trains(pair) else ())


def _pruned(study: Study, pair: Pair, seed: int) -> Cell:
    return study.choice(pair, "ranp-f", Amount(sparsity=study.sparsity(pair)), seed)


def cells(study: Study) -> list[Cell]:
    """All rows' cells; both data sets are needed."""
    study.require_all(_DEEP)
    return [cell for pair in _DEEP for row in _LABELS for cell in made(study, pair, row).cells]


def show(study: Study) -> Outcome:
    """The table."""
    rows = []
    for pair in _DEEP:
        for name, label in _LABELS.items():
            paper = {"metrics": printed()["table-transfer"][pair.name][name]}
            if name == "full" and pair.name in printed()["full"]:
                paper = {**printed()["full"][pair.name], **paper, "sparsity": 0.0}
            cells_of_row = made(study, pair, name)
            rows.append(row_of(study, pair, label, cells_of_row, paper, exact=name == "full"))
    return Outcome(
        ComparisonTable(
            "Table 4: transfer between ShapeNet and BraTS'18 with 23 layers",
            tuple(columns(study, _DEEP)),
            tuple(rows),
            (
                *about_data(study, _DEEP),
                "T-RANP-f: pruned on the other data set, trained on this one; first and last layer "
                "are exchanged.",
            ),
            printed()["tolerance"],
            checked=study.at_paper_size,
        )
    )
