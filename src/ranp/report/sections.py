"""The parts of a report: bars by layer, the network, importance, lines over time."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ranp.report.charts import LineChart, Picture, line_chart, network_picture
from ranp.report.rendering import digits_for, figure
from ranp.report.runs import StoredRun

_MIB = 2**20
_TABLE_ROWS = 40

STAGES = {
    "vanilla": ("Importance", "Eq. 6"),
    "weighted": ("Balanced", "Eq. 9"),
    "ranp-f": ("Reweighted by FLOPs", "Eq. 10"),
    "ranp-m": ("Reweighted by memory", "Eq. 10"),
}
"""Rankings that are the stages of the method: heading and equation."""


# Layer by layer.


@dataclass(frozen=True)
class LayerChart:
    """A bar for every layer: the full network's, and in it the slim one's.

    Attributes:
        key: The quantity.
        title: Of the chart.
        unit: Of the numbers.
        digits: After the point.
        rows: Layer name, before, after.
        largest: What the longest bar stands for.
        scale: Counted values x scale are the numbers shown.
    """

    key: str
    title: str
    unit: str
    digits: int
    rows: list[tuple[str, float, float]]
    largest: float
    scale: float


# Quantity, title, and its units from large to small with what one counted thing is in them.
_MEASURES = (
    ("flops", "Operations", (("GFLOPs", 1e-9), ("MFLOPs", 1e-6), ("kFLOPs", 1e-3))),
    ("activations", "Activation memory", (("MB", 4 / 2**20), ("kB", 4 / 2**10))),
    ("parameters", "Parameters", (("MB", 4 / 2**20), ("kB", 4 / 2**10))),
)


def layer_charts(record: Mapping[str, Any] | None) -> list[LayerChart]:
    """Neurons, and costs where they were recorded, in units that leave few zeros."""
    if record is None:
        return []
    neurons = [(each["name"], each["neurons"], each["kept"]) for each in record["layers"]]
    charts = [_layer_chart("neurons", "Neurons", (("", 1),), neurons)]
    for key, title, units in _MEASURES if "rows" in record else ():
        rows = [
            (each["name"], *(sum(record["rows"][r][key][i] for r in each["rows"]) for i in (0, 1)))
            for each in record["layers"]
        ]
        charts.append(_layer_chart(key, title, units, rows))
    return charts


def _layer_chart(
    key: str, title: str, units: Sequence[tuple[str, float]], rows: Sequence[Any]
) -> LayerChart:
    most = max((before for _, before, _ in rows), default=0) or 1
    unit, scale = next((u for u in units if most * u[1] >= 0.1), units[-1])
    scaled = [(name, before * scale, after * scale) for name, before, after in rows]
    digits = 0 if key == "neurons" else digits_for(most * scale, 2 if most * scale > 100 else 3)
    return LayerChart(key, title, unit, digits, scaled, most * scale, scale)


def picture(record: Mapping[str, Any] | None) -> Picture | None:
    """The network as a picture, where its topology was recorded."""
    if record is None or "topology" not in record:
        return None
    return network_picture(record["layers"], record["topology"])


# Importance.


@dataclass(frozen=True)
class Stage:
    """One ranking: the spread of importance in every layer, on a logarithmic axis from 0 to 1000.

    Attributes:
        method: The method that ranks by it.
        title: For people.
        equation: Of the paper.
        low: Where the axis begins: the lowest end of the layers' 5 %.
        high: Where it ends: the largest importance.
        threshold: The least important neuron that is kept; None if none is.
        cut: The threshold on the axis.
        rows: For each layer the places of its quantiles and its mean.
        numbers: The same as numbers.
    """

    method: str
    title: str
    equation: str
    low: float
    high: float
    threshold: float | None
    cut: float
    rows: list[list[float]]
    numbers: list[list[float]]


def stages(record: Mapping[str, Any] | None) -> list[Stage]:
    """The rankings in the order of the method's stages, then others."""
    methods = ((record or {}).get("explorer") or {}).get("methods", {})
    ranked = {name: m for name, m in methods.items() if "levels" in m}
    order = [*(name for name in STAGES if name in ranked), *(n for n in ranked if n not in STAGES)]
    sparsity = float((record or {}).get("settings", {}).get("sparsity", 0))
    return [_stage(name, ranked[name], sparsity) for name in order]


def _stage(name: str, ranking: Mapping[str, Any], sparsity: float) -> Stage:
    levels, quantiles = ranking["levels"], ranking["quantiles"]
    ranked = _unpack(levels["packed"])
    k = int(len(ranked) * (1 - sparsity))
    share = ranked[k - 1] / 65535 if k else 1.0
    threshold = 10 ** (levels["low"] + share * (levels["high"] - levels["low"]))
    low = min((row[1] for row in quantiles if row[1] > 0), default=10 ** levels["low"])
    high = 10 ** levels["high"]
    title, equation = STAGES.get(name, (name, "its own criterion"))

    def place(value: float) -> float:
        if value <= low or high <= low:
            return 0.0
        return round(1000 * min(math.log(value / low) / math.log(high / low), 1), 1)

    return Stage(
        method=name,
        title=title,
        equation=equation,
        low=low,
        high=high,
        threshold=threshold if k else None,
        cut=place(threshold),
        rows=[[place(value) for value in row] for row in quantiles],
        numbers=quantiles,
    )


def _unpack(packed: Mapping[str, str]) -> tuple[int, ...]:
    raw = base64.b64decode(packed["base64"])
    width = int(packed["dtype"][1])
    return struct.unpack(f"<{len(raw) // width}{'H' if width == 2 else 'I'}", raw)


# Over time.


@dataclass(frozen=True)
class TimeChart:
    """Lines over time with what they say, and their numbers."""

    title: str
    x: str
    y: str
    chart: LineChart
    header: list[str]
    numbers: list[list[str]]


def timeline(record: Mapping[str, Any] | None) -> TimeChart | None:
    """The bytes alive during a training step, full against slim."""
    lines = (record or {}).get("timelines") or {}
    if not lines:
        return None
    curves = {}
    places: dict[str, list[float]] = {}
    for name, line in lines.items():
        ends = max(len(line["bytes"]) - 1, 1)
        curves[name] = [(100 * i / ends, size / _MIB) for i, size in enumerate(line["bytes"])]
        for phase in ("backward", "step"):
            if phase in line:
                places.setdefault(phase, []).append(100 * line[phase] / ends)
    marks = [(sum(found) / len(found), phase) for phase, found in places.items()]
    chart = line_chart(curves, steps=True, marks=marks)
    numbers = [
        [f"{place} %", *(figure(_at(curve, place), 1) for curve in curves.values())]
        for place in range(0, 101, 5)
    ]
    return TimeChart(
        "Memory of a training step",
        "progress of the step, %",
        "MB alive",
        chart,
        ["progress", *(f"{name}, MB" for name in curves)],
        numbers,
    )


@dataclass(frozen=True)
class PeakHolders:
    """The layers that hold the peak of a training step.

    Attributes:
        header: Over the columns.
        rows: A layer, and what it holds in each network.
        about: When each network reaches its peak.
    """

    header: list[str]
    rows: list[list[str]]
    about: str


def peak_holders(record: Mapping[str, Any] | None) -> PeakHolders | None:
    """What was alive at the peaks of full and slim network, by layer."""
    lines = (record or {}).get("timelines") or {}
    held = {name: dict(line["holders"]) for name, line in lines.items() if line.get("holders")}
    if not held:
        return None
    layers = dict.fromkeys(layer for holders in held.values() for layer in holders)
    rows = [
        [
            layer or "between layers, loss",
            *(_megabytes(holders.get(layer)) for holders in held.values()),
        ]
        for layer in layers
    ]
    peaks = [
        f"{name} {_megabytes(lines[name]['peak'])} MB in the {_PHASES[lines[name]['phase']]}"
        for name in held
    ]
    return PeakHolders(["layer", *(f"{name}, MB" for name in held)], rows, "; ".join(peaks))


_PHASES = {"forward": "forward pass", "backward": "backward pass", "step": "optimizer's step"}


def _megabytes(size: int | None) -> str:
    return "" if size is None else figure(size / _MIB, 1)


def _at(curve: Sequence[tuple[float, float]], x: float) -> float:
    return next((y for place, y in reversed(curve) if place <= x), curve[0][1])


def curves(run: StoredRun) -> TimeChart | None:
    """The metric that the run was trained for, by epoch."""
    goal = (run.training or {}).get("goal")
    points = [
        (float(line["epoch"]), float(line["metrics"][goal]))
        for line in run.epochs
        if goal and goal in (line.get("metrics") or {})
    ]
    if len(points) < 2:
        return None
    every = -(-len(points) // _TABLE_ROWS)
    return TimeChart(
        "Training",
        "epoch",
        str(goal),
        line_chart({str(goal): points}, from_zero=False),
        ["epoch", str(goal)],
        [[f"{x:g}", f"{y:.4f}"] for x, y in [*points[:-1:every], points[-1]]],
    )
