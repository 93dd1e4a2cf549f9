"""The sections of a report: bars by layer, the network, importance, lines over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ranp.display import MIB
from ranp.report.charts import LineChart, Picture, decades, line_chart, network_picture
from ranp.report.rendering import figure
from ranp.report.runs import StoredRun

_TABLE_ROWS = 40

STAGES = {
    "vanilla": ("Importance", "Eq. 6"),
    "weighted": ("Balanced", "Eq. 9"),
    "ranp-f": ("Reweighted by FLOPs", "Eq. 10"),
    "ranp-m": ("Reweighted by memory", "Eq. 10"),
}
"""Rankings that are the stages of the method: heading and equation."""


@dataclass(frozen=True)
class Table:
    """Headings and rows of text, and what there is to say about them."""

    headings: list[str]
    rows: list[list[str]]
    about: str = ""


# Layer by layer.


def blocks_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the layers to show: each for itself, or summed up by block in a deep network."""
    layers = record.get("layers", [])
    sizes = record.get("blocks") or [(layer["name"], 1) for layer in layers]
    result, start = [], 0
    for name, size in sizes:
        members = layers[start : start + size]
        start += size
        summed = ("neurons", "kept", "fixed")
        block = {key: sum(each.get(key, 0) for each in members) for key in summed}
        rows = [row for each in members for row in each.get("rows", ())]
        result.append({"name": name, "layers": size, **block, "rows": rows})
    return result


def _block_topology(
    topology: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return how blocks follow each other, as `ranp.recording.topology` has it of layers."""
    sizes = [block["layers"] for block in blocks]
    owner = [number for number, size in enumerate(sizes) for _ in range(size)]
    firsts = [0, *accumulate(sizes)][:-1]
    between = {
        key: [
            list(pair)
            for pair in dict.fromkeys((owner[i], owner[j]) for i, j in topology[key])
            if pair[0] != pair[1]
        ]
        for key in ("feeds", "adds")
    }
    return {"space": [topology["space"][first] for first in firsts], **between}


@dataclass(frozen=True)
class LayerChart:
    """A bar per layer: the full network's, in it the slim one's; rows are (name, full, slim)."""

    key: str
    title: str
    unit: str
    digits: int
    rows: list[tuple[str, float, float]]
    largest: float


# Quantity, title, and its units from large to small with what one counted thing is in them.
_MEASURES = (
    ("flops", "Operations", (("GFLOPs", 1e-9), ("MFLOPs", 1e-6), ("kFLOPs", 1e-3))),
    ("activations", "Activation memory", (("MB", 4 / MIB), ("kB", 4 / 2**10))),
    ("parameters", "Parameters", (("MB", 4 / MIB), ("kB", 4 / 2**10))),
)


def layer_charts(
    record: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]
) -> list[LayerChart]:
    """Return neurons, and costs where they were recorded, in units that leave few zeros."""
    if not blocks:
        return []
    neurons = [(each["name"], each["neurons"], each["kept"]) for each in blocks]
    charts = [_layer_chart("neurons", "Neurons", (("", 1),), neurons)]
    for key, title, units in _MEASURES if "rows" in record else ():
        rows = [
            (each["name"], *(sum(record["rows"][r][key][i] for r in each["rows"]) for i in (0, 1)))
            for each in blocks
        ]
        charts.append(_layer_chart(key, title, units, rows))
    return charts


def _layer_chart(
    key: str, title: str, units: Sequence[tuple[str, float]], rows: Sequence[Any]
) -> LayerChart:
    most = max((before for _, before, _ in rows), default=0) or 1
    unit, scale = next((u for u in units if most * u[1] >= 0.1), units[-1])
    scaled = [(name, before * scale, after * scale) for name, before, after in rows]
    digits = 0 if key == "neurons" else max(0, 3 - math.floor(math.log10(most * scale)))
    return LayerChart(key, title, unit, digits, scaled, most * scale)


def picture(record: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]) -> Picture | None:
    """Return the network as a picture, where its topology was recorded."""
    if "topology" not in record:
        return None
    return network_picture(blocks, _block_topology(record["topology"], blocks))


def layer_table(record: Mapping[str, Any]) -> Table | None:
    """Return the table below the picture, where the topology was recorded."""
    if "topology" not in record:
        return None
    layers, topology = record["layers"], record["topology"]
    sources = {key: _sources(layers, topology[key]) for key in ("feeds", "adds")}
    headings = ["layer", "output size", "channels", "kept", "must stay", "takes from"]
    if topology["adds"]:
        headings.append("added to")
    rows = [
        [
            layer["name"],
            " × ".join(map(str, topology["space"][i] or ())),
            figure(layer["neurons"]),
            figure(layer["kept"]),
            figure(layer["fixed"]) if layer["fixed"] else "",
            *(sources[key].get(i, "") for key in ("feeds", "adds")[: len(headings) - 5]),
        ]
        for i, layer in enumerate(layers)
    ]
    return Table(headings, rows)


def _sources(layers: Sequence[Any], pairs: Sequence[Sequence[int]]) -> dict[int, str]:
    """Return by number of a layer the names of those that a line leads from."""
    names: dict[int, list[str]] = {}
    for i, j in pairs:
        names.setdefault(j, []).append(layers[i]["name"])
    return {j: ", ".join(each) for j, each in names.items()}


# Importance.


@dataclass(frozen=True)
class Stage:
    """One ranking: the spread of importance in every layer, on a logarithmic axis from 0 to 1000.

    At each sparsity of the table, neurons are kept from an importance on (`thresholds`; `cuts` are
    the same as places on the axis). By layer, `rows` has the places of quantiles and mean, and
    `numbers` their values; `ends` label the axis.
    """

    method: str
    title: str
    equation: str
    ends: tuple[str, str]
    thresholds: list[str]
    cuts: list[float]
    rows: list[list[float]]
    numbers: list[list[float]]


def stages(record: Mapping[str, Any]) -> list[Stage]:
    """Return the rankings in the order of the method's stages, then others."""
    methods = record.get("explorer", {}).get("methods", {})
    ranked = {name: m for name, m in methods.items() if m.get("thresholds")}
    order = [*(name for name in STAGES if name in ranked), *(n for n in ranked if n not in STAGES)]
    return [_stage(name, ranked[name]) for name in order]


def _stage(name: str, ranking: Mapping[str, Any]) -> Stage:
    quantiles = ranking["quantiles"]
    lowest = min((row[1] for row in quantiles if row[1] > 0), default=1.0)
    highest = max(row[-2] for row in quantiles)
    low, *_, high = decades(lowest, max(highest, 2 * lowest))
    title, equation = STAGES.get(name, (name, "its own criterion"))

    def place(value: float | None) -> float:
        if value is None:
            return 1000.0
        share = math.log(value / low) / math.log(high / low) if value > 0 else 0.0
        return round(1000 * min(max(share, 0.0), 1.0), 1)

    return Stage(
        method=name,
        title=title,
        equation=equation,
        ends=(f"{low:g}", f"{high:g}"),
        thresholds=["none" if t is None else f"{t:.3g}" for t in ranking["thresholds"]],
        cuts=[place(threshold) for threshold in ranking["thresholds"]],
        rows=[[place(value) for value in row] for row in quantiles],
        numbers=quantiles,
    )


# Over time.


@dataclass(frozen=True)
class TimeChart:
    """Lines over time, their axes and their numbers."""

    title: str
    x: str
    y: str
    chart: LineChart
    numbers: Table


def timeline(record: Mapping[str, Any]) -> TimeChart | None:
    """Return the bytes alive during a training step, full against slim."""
    lines = record.get("timelines", {})
    if not lines:
        return None
    curves = {}
    places: dict[str, list[float]] = {}
    for name, line in lines.items():
        ends = max(len(line["bytes"]) - 1, 1)
        curves[name] = [(100 * i / ends, size / MIB) for i, size in enumerate(line["bytes"])]
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
        "MiB alive",
        chart,
        Table(["progress", *(f"{name}, MiB" for name in curves)], numbers),
    )


def peak_holders(record: Mapping[str, Any]) -> Table | None:
    """Return what is alive at the peaks of full and slim network, by layer."""
    lines = record.get("timelines", {})
    held = {name: dict(line["holders"]) for name, line in lines.items() if line.get("holders")}
    if not held:
        return None
    layers = dict.fromkeys(layer for holders in held.values() for layer in holders)
    rows = [
        [
            layer or "between layers, loss",
            *(_mebibytes(holders.get(layer)) for holders in held.values()),
        ]
        for layer in layers
    ]
    peaks = []
    for name in held:
        line, allowance = lines[name], lines[name].get("allowance", 0)
        text = f"{name} {_mebibytes(line['peak'] + allowance)} MiB in the {_PHASES[line['phase']]}"
        more = f", {_mebibytes(allowance)} MiB of them for what no tensor accounts for"
        peaks.append(text + (more if allowance else ""))
    return Table(["layer", *(f"{name}, MiB" for name in held)], rows, "; ".join(peaks))


_PHASES = {"forward": "forward pass", "backward": "backward pass", "step": "optimizer's step"}


def _mebibytes(size: int | None) -> str:
    return "" if size is None else figure(size / MIB, 1)


def _at(curve: Sequence[tuple[float, float]], x: float) -> float:
    return next((y for place, y in reversed(curve) if place <= x), curve[0][1])


def curves(run: StoredRun) -> TimeChart | None:
    """Return the metric that the run was trained for, by epoch."""
    goal = (run.training or {}).get("goal")
    points = [
        (float(line["epoch"]), float(line["metrics"][goal]))
        for line in run.epochs
        if goal and goal in (line.get("metrics") or {})
    ]
    if len(points) < 2:
        return None
    every = -(-len(points) // _TABLE_ROWS)
    numbers = [[f"{x:g}", f"{y:.4f}"] for x, y in [*points[:-1:every], points[-1]]]
    return TimeChart(
        "Training",
        "epoch",
        str(goal),
        line_chart({str(goal): points}, from_zero=False),
        Table(["epoch", str(goal)], numbers),
    )
