"""Figure 5: a pruned network with a larger batch converges faster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ranp.errors import UsageError
from ranp.experiments.reproduce import tables
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.scales import PAIRS
from ranp.experiments.reproduce.study import Study
from ranp.report.paper_figures import draw_learning
from ranp.report.table import Column, ComparisonTable, Figure

_DEEP = PAIRS["unet3d-23-shapenet"]
# In forty hours on one of the paper's GPUs the full network ran 6 epochs, and RANP-f's 26.
_BATCH_AND_EPOCHS = {"full": (1, 6), "ranp-f": (4, 26)}


def declare(study: Study, name: str) -> tables.Exhibit:
    """Return the figure, and a table of where the curves end."""
    if study.resources_only:
        raise UsageError(
            "fig-convergence is about training: without it there is nothing to draw; leave out "
            "--resources-only"
        )
    study.require_all((_DEEP,))
    rows = [_make_row(study, method) for method in _BATCH_AND_EPOCHS]

    def draw(table: ComparisonTable) -> Any:
        runs = {row.label: [study.history(cell) for cell in row.cells.trainings] for row in rows}
        return draw_learning(runs, "miou", "mIoU")

    return tables.make_exhibit(
        study,
        "Figure 5: a faster convergence with increased batch size",
        rows,
        (_DEEP,),
        [
            *tables.make_columns(study, (), sparsity=False),
            Column("epochs", "Epochs", 0, points=True),
            Column("minutes", "Minutes"),
            Column("loss", "Loss"),
            Column("miou", "mIoU (%)"),
        ],
        about="Batch 1 for the full network and 4 for RANP-f's at "
        f"{100 * study.sparsity(_DEEP):.0f} %, learning rate 0.01; a curve for each seed. The "
        "paper trained each for 40 hours at 128³, which were 6 and 26 epochs.",
        draw=draw,
    )


def _make_row(study: Study, method: str) -> tables.TableRow:
    """Return the row of a network's curves, one for each seed."""
    batch, epochs = _BATCH_AND_EPOCHS[method]
    changes: dict[str, Any] = {
        "batch": batch,
        "epochs": epochs,
        "optimizer__lr": 0.01,
        "validate_every": 1,  # a curve, not its end
    }
    if study.scale == "paper":
        changes["data__size"] = 128  # "the largest spatial size of one sample on a single GPU"
    if study.scale == "smoke":
        changes["epochs"] = 2
    trainings = []
    for seed in study.each_seed:
        plan = None
        if method != "full":
            plan = study.choice(_DEEP, method, Amount(sparsity=study.sparsity(_DEEP)), seed)
        trainings.append(study.training(_DEEP, plan, seed, **changes))
    printed = {"epochs": epochs, "minutes": 2400} if study.at_paper_size else {}
    return tables.TableRow(
        _DEEP,
        f"{tables.LABELS[method]}, batch {batch}",
        tables.RowCells((), tuple(trainings)),
        printed,
        figures=_figures,
    )


def _figures(study: Study, row: tables.TableRow) -> dict[str, Figure]:
    results = [study.result(cell) for cell in row.cells.trainings]
    ends = [study.history(cell)[-1] for cell in row.cells.trainings]
    costs = [{"costs": result, "full": result["full"]} for result in results]

    def figure(values: Iterable[float], key: str) -> Figure:
        return Figure(tuple(values), row.printed.get(key))

    return {
        **tables.cost_figures(study, row, costs),
        "epochs": figure((last["epoch"] for last in ends), "epochs"),
        "minutes": figure((last["seconds"] / 60 for last in ends), "minutes"),
        "loss": figure((last["loss"] for last in ends), "loss"),
        "miou": figure((100 * last["metrics"]["miou"] for last in ends), "miou"),
    }
