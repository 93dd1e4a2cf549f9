"""Figures 3 and 10: the importance of every neuron, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ranp.experiments.reproduce.rows import LABELS, Outcome, about_data
from ranp.experiments.reproduce.scales import PAIRS
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell
from ranp.report.paper_figures import draw_importance
from ranp.report.table import Column, ComparisonTable, Figure, Row

_SEGMENTATION = (PAIRS["unet3d-shapenet"], PAIRS["unet3d-brats"])

BY_NAME: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "fig-importance": (
        "Figures 3 and 10: neuron importance becomes balanced and resource aware",
        {method: LABELS[method] for method in ("vanilla", "weighted", "ranp-f")},
    ),
    "fig-mnmg": (
        "Figure 9: MNMG-sum beside MPMG-sum",
        {"mnmg-sum": "MNMG-sum", "vanilla": "MPMG-sum"},
    ),
}
"""Title and methods of each of the two figures."""

BEHIND_BATCH_NORM = (
    "In front of a batch norm a neuron's weights can be scaled without any effect, so the gradient "
    "of its mask is zero but for the norm's epsilon and rounding: what these leave is all that "
    "MNMG-sum and MNMG-mean rank there."
)


def cells(study: Study, name: str = "fig-importance") -> list[Cell]:
    """The cells of one of the figures; seed 0 is drawn."""
    pairs = study.pairs(_SEGMENTATION)
    return [study.importance(pair, method) for pair in pairs for method in BY_NAME[name][1]]


def show(study: Study, name: str = "fig-importance") -> Outcome:
    """One of the figures, and a table of the layers' means."""
    title, methods = BY_NAME[name]
    pairs, rows = study.pairs(_SEGMENTATION), []
    panels: dict[str, dict[str, list[list[float]]]] = {}
    for pair in pairs:
        found = {m: study.result(study.importance(pair, m)) for m in methods}
        panels[pair.title] = {methods[m]: found[m]["importance"] for m in methods}
        for number, layer in enumerate(next(iter(found.values()))["layers"]):
            figures = {
                method: Figure((_share_of_mean(result["importance"], number),))
                for method, result in found.items()
            }
            rows.append(Row(pair.title, f"{number + 1}. `{layer}`", figures))

    def draw(path: Path) -> None:
        draw_importance(path, panels, shared=name == "fig-importance")

    about = [
        "The paper prints no figures here, only pictures. Given is the mean importance of a "
        "layer's neurons over that of all neurons: 1 everywhere is balanced."
    ]
    about += [BEHIND_BATCH_NORM] if "mnmg-sum" in methods else []
    columns = tuple(Column(m, label, 3, significant=True) for m, label in methods.items())
    table = ComparisonTable(
        title, columns, tuple(rows), (*about_data(study, pairs, one_seed=True), *about)
    )
    return Outcome(table, draw)


def _share_of_mean(layers: list[list[float]], number: int) -> float:
    everything = [value for layer in layers for value in layer]
    mean = sum(everything) / len(everything)
    return sum(layers[number]) / len(layers[number]) / mean if mean else 0.0
