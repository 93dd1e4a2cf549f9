"""The figure of a comparison: every run, means and intervals, a panel for each budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ranp.report.comparison_tables import Result, goal_heading, heading
from ranp.report.figures import PALETTE, pyplot_module, save_figure, styled

_WIDTH = 7.6
_ROW = 0.3


@styled
def draw_comparison(path: str | Path, result: Result) -> None:
    """Draw the accuracy of the methods, one below the other, and a line at the full network's."""
    panels = result["budgets"]
    methods = [row["method"] for row in panels[0]["rows"]]
    size = (_WIDTH, 1.15 + _ROW * len(methods))
    figure, (axes_of,) = pyplot_module().subplots(
        1, len(panels), figsize=size, sharex=True, sharey=True, squeeze=False
    )
    for axes, section in zip(axes_of, panels, strict=True):
        for place, row in enumerate(section["rows"]):
            colour = PALETTE[1] if row["method"] == result["reference"] else PALETTE[0]
            _method(axes, row, place, "#444444" if row["method"] == "full" else colour)
        axes.set(title=heading(section), xlabel=goal_heading(result))
        axes.set_yticks(range(len(methods)), methods)
        axes.tick_params(left=False)
        axes.grid(axis="x")
    axes_of[0].set_ylim(len(methods) - 0.4, -0.6)
    low, high = axes_of[0].get_xlim()
    axes_of[0].set_xlim(max(low, 0.0), min(high, 100.0))  # intervals may exceed 0 and 100 %
    key = "circles: runs; diamonds and bars: mean and its 95 % interval; dashed: the full network"
    figure.text(0.99, 0.01, key, ha="right", fontsize=7.5, color="#555555")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    save_figure(figure, path)


def _method(axes: Any, row: Mapping[str, Any], place: int, color: str) -> None:
    accuracy = row["accuracy"]
    if accuracy is None:
        left = axes.get_yaxis_transform()  # across in shares of the axes, up in methods
        style = {"fontsize": 8, "color": "#777777"}
        axes.text(0.02, place, "out of reach", transform=left, va="center", **style)
        return
    runs = [100 * run["accuracy"] for run in row["runs"] if run["outcome"] == "trained"]
    if row["method"] == "full":
        axes.axvline(100 * accuracy["mean"], color=color, linestyle="--", linewidth=0.8)
    if accuracy["low"] is not None:
        ends = [100 * accuracy["low"], 100 * accuracy["high"]]
        axes.plot(ends, [place, place], color=color, linewidth=4, alpha=0.3, solid_capstyle="butt")
    circles = {"markersize": 4.5, "mfc": "white", "mec": color, "clip_on": False, "zorder": 3}
    axes.plot(runs, [place] * len(runs), "o", **circles)
    axes.plot(100 * accuracy["mean"], place, "D", color=color, markersize=6.5, zorder=4)
