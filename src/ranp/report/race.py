"""The page of a race: how its candidates learned, what they are made of, and why one won."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ranp.report.charts import LineChart, line_chart
from ranp.report.rendering import render

_DRAWN = 4
"""Metrics that are drawn: the one that counts, and those yielded next to it."""


def render_race(record: Mapping[str, Any], command: str | None = None) -> str:
    """Return the record of a race as one HTML page, which reads without JavaScript too."""
    curves = record["curves"]
    lines: Sequence[Mapping[str, float]] = max(curves.values(), key=len, default=[])
    metrics = list(lines[0]) if lines else []
    rungs = [rung["check_ins"] for rung in record["rungs"] if rung["check_ins"]]
    return render(
        "race.html",
        crumb="race",
        title=f"{record['winner']} wins the race",
        why=record["why"],
        caution=record["caution"],
        facts=[
            ("cost", f"{100 * record['spent']:.4g} % of the training that follows"),
            ("announced maximum", f"{100 * record['stated']:.4g} %"),
            ("CPU", f"{record['cpu_seconds']:,.0f} s"),
        ],
        charts=[(name, _chart(curves, name, rungs)) for name in metrics[:_DRAWN]],
        not_drawn=metrics[_DRAWN:],
        names=list(curves),
        rows=[_row(record, name, metrics[:2]) for name in curves],
        headings=[
            *("candidate", "check-ins", *metrics[:2]),
            *(f"{metric}, other seed" for metric in metrics[:2] if record["again"]),
            "neurons of each layer",
        ],
        layers=list(next(iter(record["widths"].values()), {})),
        again=bool(record["again"]),
        left_out=record["left_out"],
        command=command,
    )


def _chart(curves: Mapping[str, Any], metric: str, rungs: list[int]) -> LineChart:
    points = {
        name: [(number, line[metric]) for number, line in enumerate(curve, 1) if metric in line]
        for name, curve in curves.items()
    }
    last = max(number for line in points.values() for number, _ in line)
    marks = [(at, f"rung {number}") for number, at in enumerate(rungs, 1) if at <= last]
    return line_chart(
        {name: line for name, line in points.items() if line}, from_zero=False, marks=marks
    )


def _row(record: Mapping[str, Any], name: str, metrics: list[str]) -> dict[str, Any]:
    """Return a candidate: how far it came, what it reached there, and its widths."""
    curves = [record["curves"][name]]
    if record["again"]:  # somebody met a second time
        curves.append(record["again"].get(name, []))
    ends = [
        f"{each[-1][metric]:.4g}" if each and metric in each[-1] else ""
        for each in curves
        for metric in metrics
    ]
    return {
        "name": name,
        "won": name == record["winner"],
        "check_ins": len(curves[0]),
        "reached": ends,
        "widths": list(record["widths"][name].values()),
    }
