"""Figures 3 (d), 10 and 11: which layers keep their neurons."""

from __future__ import annotations

from ranp.experiments.reproduce import table_capability
from ranp.experiments.reproduce.scales import SEGMENTATION
from ranp.experiments.reproduce.study import Study
from ranp.experiments.reproduce.tables import LABELS, Exhibit, make_layer_exhibit
from ranp.report.paper_figures import draw_retained_ratio
from ranp.report.table import Column

_METHODS = ("vanilla", "weighted", "ranp-f")


def declare(study: Study, name: str) -> Exhibit:
    """Return the figure, of the networks of Table 2 with seed 0, and a table of their layers."""
    cells = {
        pair: {
            method: table_capability.make_row(study, pair, method).cells.choices[0]
            for method in _METHODS
        }
        for pair in study.pairs(SEGMENTATION)
    }
    shares = ", ".join(f"{100 * study.sparsity(pair):.2f} % of {pair.title}" for pair in cells)
    return make_layer_exhibit(
        study,
        "Figures 3 and 11: neurons retained in every layer",
        cells,
        lambda found: {
            "full": found["ranp-f"]["neurons"],
            **{method: result["kept"] for method, result in found.items()},
        },
        [Column(method, LABELS[method], digits=0) for method in ("full", *_METHODS)],
        [f"Pruned: {shares}. The paper prints no figures here, only pictures."],
        draw_retained_ratio,
    )
