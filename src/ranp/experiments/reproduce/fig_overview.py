"""Figure 1: all methods at a glance; bottom left is the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ranp.experiments.paper import capability
from ranp.experiments.reproduce import table_capability
from ranp.experiments.reproduce.rows import LABELS, Outcome, metric_figures
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell
from ranp.report.paper_figures import Overview, Point, draw_overview


def cells(study: Study) -> list[Cell]:
    """Those of the table of pruning capability."""
    return table_capability.cells(study)


def show(study: Study) -> Outcome:
    """The figure, with the table that it is drawn from."""
    panels = {pair.title: _overview(study, pair) for pair in study.pairs(FOUR)}
    unit = ("GFLOPs", "memory (MB)")
    if not study.at_paper_size:
        unit = ("GFLOPs (% of full)", "memory (% of full)")

    def draw(path: Path) -> None:
        draw_overview(path, panels, unit)

    return Outcome(table_capability.table(study, "Figure 1: neuron pruning methods compared"), draw)


def _overview(study: Study, pair: Pair) -> Overview:
    metric, paper = next(iter(pair.metrics)), capability(pair.name)
    ours: dict[str, Point] = {}
    reached: dict[str, float] = {}
    for method in table_capability.METHODS:
        made = table_capability.made(study, pair, method)
        results = [study.result(cell) for cell in made.choices]
        figure = metric_figures(study, pair, made, None).get(metric)
        if figure is not None and figure.mean is not None:
            reached[method] = figure.mean
        loss = None
        if method in reached and "full" in reached:
            loss = reached["full"] - reached[method]
        costs = [(_cost(study, r, "gflops"), _cost(study, r, "memory_mb")) for r in results]
        gflops, memory = (sum(values) / len(costs) for values in zip(*costs, strict=True))
        ours[LABELS[method]] = Point(gflops, memory, loss)
    printed = {}
    for method, row in paper.items():
        result = {"costs": row, "full": paper["full"]}
        loss = paper["full"]["metrics"][metric][0] - row["metrics"][metric][0]
        printed[LABELS[method]] = Point(
            _cost(study, result, "gflops"), _cost(study, result, "memory_mb"), loss
        )
    return Overview(ours, printed, pair.metrics[metric])


def _cost(study: Study, result: dict[str, Any], key: str) -> float:
    """A resource, or its share of the full network where sizes differ."""
    value = float(result["costs"][key])
    return value if study.at_paper_size else 100 * value / float(result["full"][key])
