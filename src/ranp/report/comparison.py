"""The page of a comparison: accuracy against costs, with intervals, and a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ranp.display import digits_for
from ranp.errors import UsageError
from ranp.report.charts import Point, scatter
from ranp.report.rendering import render

COSTS = {
    "gflops": ("GFLOPs", "counted", 2),
    "param_mb": ("parameters, MB", "counted", 2),
    "memory_mb": ("memory, MB", "counted", 2),
    "gflops_share": ("GFLOPs, % of full", "counted", 1),
    "memory_mb_share": ("memory, % of full", "counted", 1),
    "seconds": ("seconds", "measured", 2),
    "cpu_seconds": ("CPU seconds", "measured", 2),
    "minutes": ("minutes", "measured", 2),
}
"""Columns of the table: label, how the cost was found, least digits."""

DRAWN = tuple(key for key in COSTS if key != "param_mb")
"""Costs that accuracy is drawn against."""


@dataclass(frozen=True)
class Compared:
    """A network of a comparison.

    Attributes:
        name: Name of the network, or of the method that made it.
        accuracy: Mean accuracy over the runs.
        interval: Ends of its interval, if there is one.
        costs: Any of `COSTS`, by key.
        runs: Number of runs.
        more: Further columns of the table by heading: a text, or a text and its sort key.
        series: Series that gives the colour; by default each network is its own.
        group: Group that gives the shape, such as a budget.
    """

    name: str
    accuracy: float
    interval: tuple[float, float] | None = None
    costs: dict[str, float] = field(default_factory=dict)
    runs: int = 1
    more: dict[str, str | tuple[str, float]] = field(default_factory=dict)
    series: str | None = None
    group: str = ""


@dataclass(frozen=True)
class Comparison:
    """Networks to compare, in order.

    The `metric` has name and unit, as "mIoU, %"; `interval` says what the intervals mean; `answers`
    are headings with sentences; whiskers end at the `bounds` of accuracy, and the frontier of every
    series at the network named `full`. `command` makes it again.
    """

    title: str
    metric: str
    interval: str
    networks: Sequence[Compared]
    command: str | None = None
    answers: Sequence[tuple[str, Sequence[str]]] = ()
    bounds: tuple[float, float] = (-math.inf, math.inf)
    full: str | None = None


def draw_plots(comparison: Comparison) -> dict[str, Any]:
    """Lay out the networks of a comparison, for each cost that is drawn.

    Returns:
        For templates: the name of the `metric`, the plots (`each`), and the names of their colours
        (`series`) and shapes (`groups`), in order.
    """
    networks = comparison.networks
    series = list(dict.fromkeys(each.series or each.name for each in networks))
    groups = list(dict.fromkeys(each.group for each in networks if each.group))
    least, most = comparison.bounds
    plots: list[dict[str, Any]] = []
    for key in DRAWN:
        drawn = [each for each in networks if key in each.costs]
        if not drawn:
            continue
        points = []
        for each in drawn:
            low, high = each.interval or (each.accuracy, each.accuracy)
            ends = max(low, least), min(high, most)
            colour = series.index(each.series or each.name)
            shape = groups.index(each.group) if each.group else 0
            points.append(Point(each.name, each.costs[key], each.accuracy, *ends, colour, shape))
        if comparison.full is None or plots:
            view = scatter(points)
        else:  # the first plot is the answer: wide, with the frontier of every series
            names = [each.name for each in drawn]
            end = names.index(comparison.full) if comparison.full in names else None
            view = scatter(points, width=680, height=300, end=end)
        label, how, _ = COSTS[key]
        plots.append({"key": key, "label": label, "how": how, "view": view})
    return {"metric": comparison.metric, "each": plots, "series": series, "groups": groups}


def render_comparison(comparison: Comparison) -> str:
    """Return the comparison as one HTML page, which reads without JavaScript too."""
    networks = comparison.networks
    if not networks:
        raise UsageError("a comparison must have at least one network, got none")
    keys = [key for key in COSTS if any(key in each.costs for each in networks)]
    digits = {key: _digits(key, networks) for key in keys}
    more = list(dict.fromkeys(heading for each in networks for heading in each.more))
    return render(
        "comparison.html",
        crumb="comparison",
        title=comparison.title,
        command=comparison.command,
        comparison=comparison,
        facts=[("metric", comparison.metric), ("intervals", comparison.interval)],
        plots=draw_plots(comparison),
        rows=[_row(each, keys, more, digits) for each in networks],
        headings=[comparison.metric, "interval", "runs", *(COSTS[key][0] for key in keys), *more],
    )


def interval_cell(each: Compared) -> tuple[str, str]:
    """Return the interval as a cell: its text, and its width to sort by."""
    low, high = each.interval or (0.0, 0.0)
    return (f"{low:.2f} to {high:.2f}", repr(high - low)) if high > low else ("", "")


def _digits(key: str, networks: Sequence[Compared]) -> int:
    """Return as many digits as the cheapest network needs to be told from zero."""
    values = [each.costs[key] for each in networks if each.costs.get(key)]
    return digits_for(min(values, default=1.0), COSTS[key][2])


def _row(
    each: Compared, keys: Sequence[str], more: Sequence[str], digits: Mapping[str, int]
) -> dict[str, Any]:
    """Return a row of the table; a cell is a text and its sort key."""
    cells = [(f"{each.accuracy:.2f}", repr(each.accuracy)), interval_cell(each)]
    cells.append((str(each.runs), str(each.runs)))
    for key in keys:
        value = each.costs.get(key)
        cells.append(("", "") if value is None else (f"{value:,.{digits[key]}f}", repr(value)))
    for heading in more:
        shown = each.more.get(heading, "")
        cells.append((shown, shown) if isinstance(shown, str) else (shown[0], repr(shown[1])))
    return {"name": each.name, "cells": cells}
