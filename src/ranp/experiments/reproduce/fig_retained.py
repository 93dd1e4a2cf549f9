"""Figures 3 (d), 10 and 11: which layers keep their neurons."""

from __future__ import annotations

from pathlib import Path

from ranp.experiments.reproduce import table_capability
from ranp.experiments.reproduce.scales import SEGMENTATION
from ranp.experiments.reproduce.study import Study
from ranp.experiments.reproduce.tables import LABELS, Exhibit, about_data, layer_rows, make_table
from ranp.report.paper_figures import Retained, draw_retained_ratio
from ranp.report.table import Column, ComparisonTable

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

    def table() -> ComparisonTable:
        rows = []
        for pair, by_method in cells.items():
            found = {method: study.result(cell) for method, cell in by_method.items()}
            kept = {method: result["kept"] for method, result in found.items()}
            some = found["ranp-f"]
            rows += layer_rows(pair, some["layers"], {"full": some["neurons"], **kept})
        shares = ", ".join(f"{100 * study.sparsity(pair):.2f} % of {pair.title}" for pair in cells)
        return make_table(
            study,
            "Figures 3 and 11: neurons retained in every layer",
            rows,
            [Column(method, LABELS[method], digits=0) for method in ("full", *_METHODS)],
            [
                about_data(study, list(cells), one_seed=True),
                f"Pruned: {shares}. The paper prints no figures here, only pictures.",
            ],
        )

    def draw(path: Path) -> None:
        panels = {}
        for pair, by_method in cells.items():
            found = {LABELS[method]: study.result(cell) for method, cell in by_method.items()}
            kept = {label: result["kept"] for label, result in found.items()}
            panels[pair.title] = Retained(next(iter(found.values()))["neurons"], kept)
        draw_retained_ratio(path, panels)

    return Exhibit([c for by_method in cells.values() for c in by_method.values()], table, draw)
