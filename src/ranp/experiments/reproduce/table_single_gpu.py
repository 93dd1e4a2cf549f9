"""Table 5: a deeper network on a single GPU."""

from __future__ import annotations

from dataclasses import replace

from ranp.experiments.paper import printed
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.rows import Made, Outcome, about_data, columns, row_of
from ranp.experiments.reproduce.scales import PAIRS, Pair
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell
from ranp.report.table import Column, ComparisonTable, Figure

_SHALLOW, _DEEP = PAIRS["unet3d-shapenet"], PAIRS["unet3d-23-shapenet"]
_ROWS = (("Full, 15 layers", _SHALLOW, False), ("Full, 23 layers", _DEEP, False),
         ("RANP-f, 23 layers", _DEEP, True))  # fmt: skip


def made(study: Study, pair: Pair, *, pruned: bool) -> Made:
    """The cells of a row; the memory of a training step is predicted, too."""
    batch, seeds = study.config(pair).batch, study.each_seed
    if not pruned:
        trained = [study.training(pair, None, seed) for seed in seeds]
        return Made((study.full(pair, batch),), tuple(trained) if study.trains(pair) else ())
    amount = Amount(sparsity=study.sparsity(pair))
    plans = [study.choice(pair, "ranp-f", amount, seed, batch=batch) for seed in seeds]
    trained = [study.training(pair, plan, seed) for seed, plan in enumerate(plans)]
    return Made(tuple(plans), tuple(trained) if study.trains(pair) else ())


def cells(study: Study) -> list[Cell]:
    """All rows' cells."""
    study.require_all((_SHALLOW, _DEEP))
    return [cell for _, pair, pruned in _ROWS for cell in made(study, pair, pruned=pruned).cells]


def show(study: Study) -> Outcome:
    """The table."""
    rows = []
    for label, pair, pruned in _ROWS:
        paper = printed()["full"][pair.name]
        near = printed()["data_dependent"][pair.name]
        row = {**near["methods"]["ranp-f"], "sparsity": 0.8} if pruned else {**paper, "sparsity": 0}
        made_row = made(study, pair, pruned=pruned)
        shown = row_of(study, pair, label, made_row, row, exact=not pruned)
        step = tuple(study.result(cell)["step_gib"] for cell in made_row.choices)
        figures = {**shown.figures, "step_gib": Figure(step)}
        rows.append(replace(shown, group=f"Batch {study.config(pair).batch}", figures=figures))
    return Outcome(
        ComparisonTable(
            "Table 5: a deeper 3D-UNet on a single GPU",
            (*columns(study, (_DEEP,)), Column("step_gib", "Training step (GiB), predicted")),
            tuple(rows),
            (
                *about_data(study, (_SHALLOW, _DEEP)),
                "The paper's GPUs have 16 GB. It trains the full networks on two of them and "
                "RANP-f's on one. The last column predicts what a step with the whole batch takes "
                "on one device: parameters, gradients, momentum and what autograd holds.",
            ),
            printed()["tolerance"],
            checked=study.at_paper_size,
        )
    )
