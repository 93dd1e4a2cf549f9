"""Figure 5: a pruned network with a larger batch converges faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ranp.errors import UsageError
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.rows import LABELS, Outcome, about_data, columns, cost_figures
from ranp.experiments.reproduce.scales import PAIRS
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell
from ranp.report.paper_figures import Progress, draw_learning
from ranp.report.table import Column, ComparisonTable, Figure, Row

_DEEP = PAIRS["unet3d-23-shapenet"]
_BATCH = {"full": 1, "ranp-f": 4}
# In forty hours on one of the paper's GPUs the full network ran 6 epochs, and RANP-f's 26.
_EPOCHS = {"full": 6, "ranp-f": 26}


def made(study: Study, method: str) -> Cell:
    """The cell of a curve, of seed 0."""
    plan = None
    if method != "full":
        plan = study.choice(_DEEP, method, Amount(sparsity=study.sparsity(_DEEP)), 0)
    changes: dict[str, Any] = {"batch": _BATCH[method], "epochs": _EPOCHS[method]}
    changes["optimizer__lr"] = 0.01
    if study.scale == "paper":
        changes["data__size"] = 128  # "the largest spatial size of one sample on a single GPU"
    if study.scale == "smoke":
        changes["epochs"] = 2
    return study.training(_DEEP, plan, 0, **changes)


def cells(study: Study) -> list[Cell]:
    """Both curves' cells."""
    if study.resources_only:
        raise UsageError(
            "fig-convergence is about training: without it there is nothing to draw; leave "
            "--resources-only away"
        )
    study.require_all((_DEEP,))
    return [made(study, method) for method in _BATCH]


def show(study: Study) -> Outcome:
    """The figure, and a table of where the curves end."""
    runs, rows = {}, []
    for method, batch in _BATCH.items():
        cell = made(study, method)
        history, result = study.history(cell), study.result(cell)
        label = f"{LABELS[method]}, batch {batch}"
        measured = [line for line in history if "metrics" in line]
        runs[label] = Progress(
            [line["epoch"] for line in measured],
            [line["seconds"] / 3600 for line in measured],
            [line["loss"] for line in measured],
            [100 * line["metrics"]["miou"] for line in measured],
        )
        last = history[-1]
        figures = {
            **cost_figures(study, _DEEP, [{"costs": result, "full": result["full"]}], None),
            "epochs": Figure((last["epoch"],), _EPOCHS[method] if study.at_paper_size else None),
            "minutes": Figure((last["seconds"] / 60,), 2400 if study.at_paper_size else None),
            "loss": Figure((last["loss"],)),
            "miou": Figure((100 * last["metrics"]["miou"],)),
        }
        rows.append(Row(_DEEP.title, label, figures))

    def draw(path: Path) -> None:
        draw_learning(path, runs, "mIoU")

    return Outcome(
        ComparisonTable(
            "Figure 5: a faster convergence with increased batch size",
            (
                *columns(study, (), sparsity=False),
                Column("epochs", "Epochs", 0, points=True),
                Column("minutes", "Minutes"),
                Column("loss", "Loss"),
                Column("miou", "mIoU (%)"),
            ),
            tuple(rows),
            (
                *about_data(study, (_DEEP,), one_seed=True),
                "Batch 1 for the full network and 4 for RANP-f's at 80 %, learning rate 0.01. The "
                "paper trained each for 40 hours at 128³, which were 6 and 26 epochs.",
            ),
        ),
        draw,
    )
