"""Table 5: a deeper network on a single GPU."""

from __future__ import annotations

from ranp.experiments.paper import printed
from ranp.experiments.reproduce import tables
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.scales import PAIRS, Pair
from ranp.experiments.reproduce.study import Study
from ranp.report.table import Column, Figure

_SHALLOW, _DEEP = PAIRS["unet3d-shapenet"], PAIRS["unet3d-23-shapenet"]


def make_row(study: Study, label: str, pair: Pair, *, pruned: bool) -> tables.TableRow:
    """Return a row; the memory of a training step is predicted, too."""
    batch = study.config(pair).batch
    row, amount = {**printed()["full"][pair.name], "sparsity": 0}, None
    if pruned:
        near = printed()["data_dependent"][pair.name]["methods"]["ranp-f"]
        row, amount = {**near, "sparsity": 0.8}, Amount(sparsity=study.sparsity(pair))
    cells = tables.make_row_cells(study, pair, "ranp-f" if pruned else "full", amount, batch=batch)
    group = f"Batch {batch}"
    return tables.TableRow(pair, label, cells, row, not pruned, figures=_figures, group=group)


def _figures(study: Study, row: tables.TableRow) -> dict[str, Figure]:
    step = tables.result_figure(study, row.cells.choices, "step_gib")
    return {**tables.paper_figures(study, row), "step_gib": step}


def declare(study: Study, name: str) -> tables.Exhibit:
    """Return the table."""
    pairs = (_SHALLOW, _DEEP)
    study.require_all(pairs)
    return tables.make_exhibit(
        study,
        "Table 5: a deeper 3D-UNet on a single GPU",
        [
            make_row(study, "Full, 15 layers", _SHALLOW, pruned=False),
            make_row(study, "Full, 23 layers", _DEEP, pruned=False),
            make_row(study, "RANP-f, 23 layers", _DEEP, pruned=True),
        ],
        pairs,
        [*tables.make_columns(study, pairs), Column("step_gib", "Training step (GiB), predicted")],
        about="The paper's GPUs have 16 GB. It trains the full networks on two of them and "
        "RANP-f's on one. The last column predicts what a step with the whole batch takes "
        "on one device: parameters, gradients, momentum and what autograd holds.",
    )
