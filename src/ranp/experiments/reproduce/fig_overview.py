"""Figure 1: all methods at a glance; bottom left is the best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ranp.experiments.reproduce import table_capability
from ranp.experiments.reproduce.scales import FOUR
from ranp.experiments.reproduce.study import Study
from ranp.experiments.reproduce.tables import Exhibit
from ranp.report.paper_figures import draw_overview
from ranp.report.table import ComparisonTable


def declare(study: Study, name: str) -> Exhibit:
    """Return the figure, with the table that it is drawn from: Table 2."""
    units = {"gflops": "GFLOPs", "memory_mb": "memory (MB)"}
    if not study.at_paper_size:
        units = {"gflops_share": "GFLOPs (% of full)", "memory_mb_share": "memory (% of full)"}

    def draw(table: ComparisonTable) -> Any:
        metrics = {pair.title: next(iter(pair.metrics.items())) for pair in FOUR}
        return draw_overview([(group, *metrics[group.title]) for group in table.groups()], units)

    title = "Figure 1: neuron pruning methods compared"
    return replace(table_capability.declare(study, name, title), draw=draw)
