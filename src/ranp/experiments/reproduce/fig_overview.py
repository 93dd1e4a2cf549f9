"""Figure 1: all methods at a glance; bottom left is the best."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ranp.experiments.paper import capability
from ranp.experiments.reproduce import table_capability
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study
from ranp.experiments.reproduce.tables import LABELS, Exhibit
from ranp.report.paper_figures import Overview, Point, draw_overview
from ranp.report.table import Figure


def declare(study: Study, name: str) -> Exhibit:
    """Return the figure, with the table that it is drawn from: Table 2."""
    unit = ("GFLOPs", "memory (MB)")
    if not study.at_paper_size:
        unit = ("GFLOPs (% of full)", "memory (% of full)")

    def draw(path: Path) -> None:
        panels = {pair.title: _overview(study, pair) for pair in study.pairs(FOUR)}
        draw_overview(path, panels, unit)

    title = "Figure 1: neuron pruning methods compared"
    return replace(table_capability.declare(study, name, title), draw=draw)


def _overview(study: Study, pair: Pair) -> Overview:
    """Return ours and the paper's networks: costs, or shares of the full network, and loss."""
    metric, paper = next(iter(pair.metrics)), capability(pair.name)
    keys = [key if study.at_paper_size else f"{key}_share" for key in ("gflops", "memory_mb")]
    ours: dict[str, Point] = {}
    theirs: dict[str, Point] = {}
    full: float | None = None
    for method, label in LABELS.items():
        figures = table_capability.make_row(study, pair, method).show(study).figures
        reached = figures.get(metric, Figure()).mean
        full = reached if method == "full" else full
        loss = None if full is None or reached is None else full - reached
        gflops, memory = (figures[key] for key in keys)
        ours[label] = Point(gflops.mean or 0.0, memory.mean or 0.0, loss)
        printed_loss = paper["full"]["metrics"][metric][0] - paper[method]["metrics"][metric][0]
        theirs[label] = Point(gflops.printed or 0.0, memory.printed or 0.0, printed_loss)
    return Overview(ours, theirs, pair.metrics[metric])
