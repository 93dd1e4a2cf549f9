"""Table 4: networks pruned on one data set and trained on the other."""

from __future__ import annotations

from ranp.experiments.paper import printed
from ranp.experiments.reproduce import tables
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.scales import PAIRS, Pair
from ranp.experiments.reproduce.study import Study

_DEEP = (PAIRS["unet3d-23-shapenet"], PAIRS["unet3d-23-brats"])
_LABELS = {"full": "Full", "ranp-f": "RANP-f", "t-ranp-f": "T-RANP-f"}


def _make_row(study: Study, pair: Pair, name: str) -> tables.TableRow:
    row = {"metrics": printed()["table-transfer"][pair.name][name]}
    if name == "full":
        cells = tables.make_row_cells(study, pair, name)
        if pair.name in printed()["full"]:
            row = {**printed()["full"][pair.name], **row, "sparsity": 0.0}
    else:
        cells = _pruned(study, pair) if name == "ranp-f" else _transferred(study, pair)
    return tables.TableRow(pair, _LABELS[name], cells, row, exact=name == "full")


def _pruned(study: Study, pair: Pair) -> tables.RowCells:
    return tables.make_row_cells(study, pair, "ranp-f", Amount(sparsity=study.sparsity(pair)))


def _transferred(study: Study, pair: Pair) -> tables.RowCells:
    """Return the cells of networks that were pruned on the other data set."""
    source = next(other for other in _DEEP if other != pair)
    plans = _pruned(study, source).choices
    # The architecture is taken over: the other network's widths, with this one's ends.
    width = study.config(source).network.options["base_width"]
    changes = {"network__options__base_width": width}
    trained = [
        study.training(pair, plan, seed, transfer=True, **changes)
        for seed, plan in enumerate(plans)
    ]
    moved = [study.transfer(pair, plan, **changes) for plan in plans]
    return tables.RowCells(tuple(moved), tuple(trained) if study.trains(pair) else ())


def declare(study: Study, name: str) -> tables.Exhibit:
    """Return the table; both data sets are needed."""
    study.require_all(_DEEP)
    return tables.make_exhibit(
        study,
        "Table 4: transfer between ShapeNet and BraTS'18 with 23 layers",
        [_make_row(study, pair, row) for pair in _DEEP for row in _LABELS],
        _DEEP,
        tables.make_columns(study, _DEEP),
        about="T-RANP-f: pruned on the other data set, trained on this one; first and last layer "
        "are exchanged.",
    )
