"""Figures 3 (d), 10 and 11: which layers keep their neurons."""

from __future__ import annotations

from pathlib import Path

from ranp.experiments.reproduce import table_capability
from ranp.experiments.reproduce.rows import LABELS, Outcome, about_data
from ranp.experiments.reproduce.scales import PAIRS
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell
from ranp.report.paper_figures import Retained, draw_retained_ratio
from ranp.report.table import Column, ComparisonTable, Figure, Row

_SEGMENTATION = (PAIRS["unet3d-shapenet"], PAIRS["unet3d-brats"])
_METHODS = ("vanilla", "weighted", "ranp-f")


def cells(study: Study) -> list[Cell]:
    """The choices of the table of pruning capability; seed 0 is drawn."""
    return [
        table_capability.made(study, pair, method).choices[0]
        for pair in study.pairs(_SEGMENTATION)
        for method in _METHODS
    ]


def show(study: Study) -> Outcome:
    """The figure, and a table of neurons per layer."""
    pairs, rows = study.pairs(_SEGMENTATION), []
    panels: dict[str, Retained] = {}
    for pair in pairs:
        results = {
            method: study.result(table_capability.made(study, pair, method).choices[0])
            for method in _METHODS
        }
        layers, full = (results["ranp-f"][key] for key in ("layers", "neurons"))
        kept = {LABELS[method]: result["kept"] for method, result in results.items()}
        panels[pair.title] = Retained(full, kept)
        for number, layer in enumerate(layers):
            figures = {"full": Figure((full[number],))}
            figures |= {m: Figure((result["kept"][number],)) for m, result in results.items()}
            rows.append(Row(pair.title, f"{number + 1}. `{layer}`", figures))

    def draw(path: Path) -> None:
        draw_retained_ratio(path, panels)

    sparsities = ", ".join(f"{100 * study.sparsity(pair):.2f} % of {pair.title}" for pair in pairs)
    return Outcome(
        ComparisonTable(
            "Figures 3 and 11: neurons retained in every layer",
            tuple(Column(m, LABELS[m], digits=0) for m in ("full", *_METHODS)),
            tuple(rows),
            (
                *about_data(study, pairs, one_seed=True),
                f"Pruned: {sparsities}. The paper prints no figures here, only pictures.",
            ),
        ),
        draw,
    )
