"""Figures 3, 9 and 10: the importance of every neuron, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ranp.experiments.reproduce.scales import SEGMENTATION
from ranp.experiments.reproduce.study import Study
from ranp.experiments.reproduce.tables import LABELS, Exhibit, make_layer_exhibit
from ranp.report.paper_figures import draw_importance
from ranp.report.table import Column, ComparisonTable

_FIGURES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "fig-importance": (
        "Figures 3 and 10: neuron importance becomes balanced and resource aware",
        {method: LABELS[method] for method in ("vanilla", "weighted", "ranp-f")},
    ),
    "fig-mnmg": (
        "Figure 9: MNMG-sum and MPMG-sum",
        {"mnmg-sum": "MNMG-sum", "vanilla": "MPMG-sum"},
    ),
}
"""Title and methods of each of the two figures."""

BEHIND_BATCH_NORM = (
    "In front of a batch norm a neuron's weights can be scaled without any effect, so the gradient "
    "of its mask is zero but for the norm's epsilon and rounding: what these leave is all that "
    "MNMG-sum and MNMG-mean rank there."
)


def declare(study: Study, name: str) -> Exhibit:
    """Return one of the figures, of seed 0, with a table of the layers' means."""
    title, methods = _FIGURES[name]
    cells = {
        pair: {method: study.importance(pair, method) for method in methods}
        for pair in study.pairs(SEGMENTATION)
    }

    about = [
        "The paper prints no figures here, only pictures. Given is the mean importance of a "
        "layer's neurons over that of all neurons: 1 everywhere is balanced.",
        *([BEHIND_BATCH_NORM] if "mnmg-sum" in methods else []),
    ]

    def draw(table: ComparisonTable) -> Any:
        panels = {
            pair.title: {
                methods[method]: study.result(cell)["importance"]
                for method, cell in by_method.items()
            }
            for pair, by_method in cells.items()
        }
        return draw_importance(panels, shared=name == "fig-importance")

    return make_layer_exhibit(
        study,
        title,
        cells,
        lambda found: {key: _shares_of_mean(each["importance"]) for key, each in found.items()},
        [Column(method, label, 3, significant=True) for method, label in methods.items()],
        about,
        draw,
    )


def _shares_of_mean(layers: list[list[float]]) -> list[float]:
    """Return the mean of every layer over the mean of all neurons."""
    everything = [value for layer in layers for value in layer]
    mean = sum(everything) / len(everything)
    return [sum(layer) / len(layer) / mean if mean else 0.0 for layer in layers]
