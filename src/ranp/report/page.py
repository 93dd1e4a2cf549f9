"""The report of a run: one HTML file that needs nothing but itself."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ranp.files import write_text
from ranp.report.charts import LineChart, line_chart, network_picture
from ranp.report.rendering import figure, render
from ranp.report.runs import StoredRun, load_run

_MIB = 2**20
STAGES = {
    "vanilla": ("Importance", "Eq. 6"),
    "weighted": ("Balanced", "Eq. 9"),
    "ranp-f": ("Reweighted by FLOPs", "Eq. 10"),
    "ranp-m": ("Reweighted by memory", "Eq. 10"),
}
"""Rankings that are the stages of the method: heading and equation."""


def write_report(path: str | Path, out: str | Path | None = None) -> Path:
    """Writes the report of a run from what it has stored, without torch.

    Args:
        path: A run's directory, or a plan.
        out: Where the page goes; `report.html` beside what it is about if not given.

    Returns:
        Where the page is.
    """
    path = Path(path)
    run = load_run(path)
    target = Path(out) if out else (path if path.is_dir() else path.parent) / "report.html"
    write_text(target, render_report(run))
    return target


def render_report(run: StoredRun) -> str:
    """The report of a run as HTML."""
    record = run.pruning
    return render(
        "report.html",
        script="explorer.js",
        run=run.name,
        title=_title(run),
        facts=_facts(run),
        figures=[*_costs(run), *_measured(record), *_accuracy(run)],
        record=record,
        charts=_layer_charts(record),
        picture=_picture(record),
        stages=_stages(record),
        timeline=_timeline(record),
        curves=_curves(run),
        training=run.training,
        page_data=_page_data(record) if record and "explorer" in record else None,
        about=_about(run),
    )


# The top: what it comes to.


@dataclass(frozen=True)
class Figure:
    """A number before and after, or one alone.

    Attributes:
        key: The quantity's name in the totals.
        label: For people.
        unit: Of the numbers.
        before: Of the full network.
        after: Of the slim network.
        share: What is left.
        note: How it was found.
    """

    key: str
    label: str
    unit: str
    before: str
    after: str
    share: float | None
    note: str


def _figure(
    key: str, label: str, unit: str, pair: Sequence[float], note: str, digits: int = 2
) -> Figure:
    before, after = pair
    share = after / before if before else None
    return Figure(key, label, unit, figure(before, digits), figure(after, digits), share, note)


def _costs(run: StoredRun) -> list[Figure]:
    totals = (run.pruning or {}).get("totals") or {}
    if not totals and run.training:
        full, slim = run.training.get("full"), run.training.get("slim")
        totals = {"full": full, "slim": slim or full} if full else {}
    if not totals:
        return []
    shown = (
        ("gflops", "Operations", "GFLOPs", "counted, one forward pass"),
        ("param_mb", "Parameters", "MB", "counted, float32"),
        ("memory_mb", "Activation memory", "MB", "counted, one forward pass"),
        ("neurons", "Neurons", "", "counted"),
    )
    return [
        _figure(key, label, unit, (totals["full"][key], totals["slim"][key]), note)
        for key, label, unit, note in shown
        if key in totals["full"]
    ]


def _measured(record: Mapping[str, Any] | None) -> list[Figure]:
    measured = (record or {}).get("measured") or {}
    if not {"full", "slim"} <= measured.keys():
        return []
    shown = (
        ("seconds", "Training step", "ms", 1000.0),
        ("peak_bytes", "Peak of a training step", "MB", 1 / _MIB),
    )
    return [
        _figure(
            key, label, unit, [scale * measured[n][key] for n in ("full", "slim")], "measured", 1
        )
        for key, label, unit, scale in shown
        if key in measured["full"] and key in measured["slim"]
    ]


def _accuracy(run: StoredRun) -> list[Figure]:
    training = run.training
    if not training or training.get("goal") not in training.get("metrics", {}):
        return []
    goal = training["goal"]
    value = training["metrics"][goal]
    spread = f"± {value['std']:.4f}, mean over the last epochs" if "std" in value else "measured"
    return [Figure(goal, goal, "", "", f"{value['mean']:.4f}", None, spread)]


def _title(run: StoredRun) -> str:
    if run.pruning and run.pruning.get("network"):
        return str(run.pruning["network"])
    if run.training and run.training.get("recipe"):
        return str(run.training["recipe"])
    return run.name


def _facts(run: StoredRun) -> list[tuple[str, str]]:
    record = run.pruning
    if record is None:
        return [("method", "none: the full network")]
    facts = [("method", str(record["method"]))]
    if "sparsity" in record["settings"]:
        facts.append(("sparsity", f"{100 * record['settings']['sparsity']:.2f} %"))
    shapes = list(_shapes(record["inputs"]))
    if shapes:
        facts.append(("input", ", ".join(" × ".join(map(str, shape)) for shape in shapes)))
    if record.get("data"):
        facts.append(("scored with", str(record["data"])))
    return facts


def _shapes(value: Any) -> Iterable[list[int]]:
    """The shapes of all tensors in recorded inputs."""
    if isinstance(value, Mapping):
        if "tensor" in value:
            yield list(value["tensor"])
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _shapes(item)


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


def _layer_charts(record: Mapping[str, Any] | None) -> list[LayerChart]:
    if record is None:
        return []
    neurons = [(each["name"], each["neurons"], each["kept"]) for each in record["layers"]]
    charts = [_layer_chart("neurons", "Neurons", "", 0, neurons, 1)]
    for key, title, unit, digits, scale in (
        ("flops", "Operations", "GFLOPs", 3, 1e-9),
        ("activations", "Activation memory", "MB", 2, 4 / _MIB),
        ("parameters", "Parameters", "MB", 3, 4 / _MIB),
    ):
        if "rows" in record:
            rows = [
                (
                    each["name"],
                    *(sum(record["rows"][r][key][i] for r in each["rows"]) for i in (0, 1)),
                )
                for each in record["layers"]
            ]
            charts.append(_layer_chart(key, title, unit, digits, rows, scale))
    return charts


def _layer_chart(
    key: str, title: str, unit: str, digits: int, rows: list[Any], scale: float
) -> LayerChart:
    scaled = [(name, before * scale, after * scale) for name, before, after in rows]
    largest = max((before for _, before, _ in scaled), default=0) or 1
    return LayerChart(key, title, unit, digits, scaled, largest, scale)


def _picture(record: Mapping[str, Any] | None) -> Any:
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


def _stages(record: Mapping[str, Any] | None) -> list[Stage]:
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


_TABLE_ROWS = 40


def _timeline(record: Mapping[str, Any] | None) -> TimeChart | None:
    """The bytes alive during a training step, full against slim."""
    lines = (record or {}).get("timelines") or {}
    if not lines:
        return None
    curves, marks = {}, []
    for name, line in lines.items():
        ends = max(len(line["bytes"]) - 1, 1)
        curves[name] = [(100 * i / ends, size / _MIB) for i, size in enumerate(line["bytes"])]
        marks.append(100 * line["backward"] / ends)
    backward = sum(marks) / len(marks)
    chart = line_chart(curves, steps=True, marks=[(backward, "backward begins")])
    places = range(0, 101, 5)
    numbers = [
        [f"{place} %", *(figure(_at(curve, place), 1) for curve in curves.values())]
        for place in places
    ]
    return TimeChart(
        "Memory of a training step",
        "progress of the step, %",
        "MB alive",
        chart,
        ["progress", *(f"{name}, MB" for name in curves)],
        numbers,
    )


def _at(curve: Sequence[tuple[float, float]], x: float) -> float:
    return next((y for place, y in reversed(curve) if place <= x), curve[0][1])


def _curves(run: StoredRun) -> TimeChart | None:
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


# The end: what it depends on.


def _about(run: StoredRun) -> list[tuple[str, list[tuple[str, str]]]]:
    record, training = run.pruning or {}, run.training or {}
    settings = {name: _text(value) for name, value in record.get("settings", {}).items()}
    if record.get("protect"):
        settings["protect"] = ", ".join(record["protect"])
    hashes = {"fingerprint of the network": record.get("fingerprint"), **record.get("files", {})}
    if training.get("data"):
        hashes["training data"] = training["data"]
    environment = {**training.get("versions", {}), **record.get("environment", {})}
    trained = {
        name: _text(training[name])
        for name in ("recipe", "epochs", "seconds", "seed", "processes", "device")
        if training.get(name) is not None
    }
    blocks = (
        ("Settings and seeds", settings),
        ("Training", trained),
        ("Environment", environment),
        ("SHA-256", {name: value for name, value in hashes.items() if value}),
    )
    return [(title, list(values.items())) for title, values in blocks if values]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)


def _page_data(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the slider computes with; `quantiles` are in the page already, drawn."""
    explorer = record["explorer"]
    methods = {
        name: {key: value for key, value in method.items() if key != "quantiles"}
        for name, method in explorer["methods"].items()
    }
    return {
        "plan": {"method": record["method"], "sparsity": record["settings"].get("sparsity", 0.0)},
        "layers": [
            {key: layer[key] for key in ("name", "neurons", "rows")} for layer in record["layers"]
        ],
        "rows": len(record["rows"]),
        "explorer": {**explorer, "methods": methods},
        "model": record["cost_model"],
    }
