"""The report of a run: one HTML file that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ranp.display import MIB, digits_for
from ranp.files import write_text
from ranp.report.rendering import figure, render, tails_of
from ranp.report.runs import StoredRun, load_run
from ranp.report.sections import (
    Stage,
    blocks_of,
    curves,
    layer_charts,
    layer_table,
    peak_holders,
    picture,
    stages,
    timeline,
)


def write_report(path: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run from what it has stored, without torch, and return its path.

    Args:
        path: Directory of a run, or path of a plan.
        out: Path of the page; `report.html` beside the run's files if not given.
    """
    path = Path(path)
    run = load_run(path)
    target = Path(out) if out else (path if path.is_dir() else path.parent) / "report.html"
    return write_text(target, render_report(run))


def render_report(run: StoredRun) -> str:
    """Return the report of a run as HTML."""
    record = run.pruning or {}
    costs, rankings, blocks = _costs(run), stages(record), blocks_of(record)
    data = _page_data(record, rankings) if "explorer" in record else None
    at = data["plan"]["sparsity"] if data else None
    return render(
        "report.html",
        crumb=run.name,
        title=str(record.get("network") or (run.training or {}).get("recipe") or run.name),
        facts=_facts(run),
        figures=[*_budgets(record), *_headline(record, costs), *_measured(record), *_accuracy(run)],
        fit=record.get("fit"),
        digits={each.key: each.digits for each in costs},
        record=record,
        blocks=blocks,
        tails=tails_of([block["name"] for block in blocks]),
        charts=layer_charts(record, blocks),
        picture=picture(record, blocks),
        layer_table=layer_table(record),
        stages=rankings,
        planned=data["sparsities"].index(at) if data and at is not None else 0,
        timeline=timeline(record),
        peak=peak_holders(record),
        curves=curves(run),
        training=run.training,
        page_data=data,
        command=record.get("command"),
        about=_about(run),
    )


# The figures at the top.


@dataclass(frozen=True)
class Figure:
    """A number before and after, or one alone; `share` is what is left, `note` how it was found."""

    key: str
    label: str
    unit: str
    before: str
    after: str
    share: float | None
    note: str
    digits: int = 0


def _figure(
    key: str, label: str, unit: str, pair: Sequence[float], note: str, digits: int = 2
) -> Figure:
    before, after = pair
    share = after / before if before else None
    digits = 0 if isinstance(before, int) else digits_for(before, digits)
    shown = (figure(before, digits), figure(after, digits))
    return Figure(key, label, unit, *shown, share, note, digits)


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


_BUDGETED = {
    "memory": ("Memory of a training step", "predicted"),
    "latency": ("Time of a training step", "measured"),
    "flops": ("Operations", "counted, one forward pass"),
    "params": ("Parameters", "counted"),
}
_COUNTED_AS = {"flops": "gflops", "params": "param_mb"}


def _budgets(record: Mapping[str, Any]) -> list[Figure]:
    """Return the figures that a network was fitted to: those with a budget, then memory."""
    rows = (record.get("fit") or {}).get("rows", ())
    shown = [row for row in rows if row["budget"] or row["resource"] == "memory"]
    figures = []
    for row in sorted(shown, key=lambda row: row["budget"] is None):
        label, how = _BUDGETED.get(row["resource"], (row["resource"], ""))
        of_full, of_budget = row["shares"]
        if row["budget"]:
            how = f"budget {row['budget']}, {100 * of_budget:.1f} % of it; {how}"
        after, _, unit = row["slim"].partition(" ")
        before = row["full"] or ""
        figures.append(Figure(row["resource"], label, unit, before, after, of_full, how))
    return figures


def _headline(record: Mapping[str, Any], costs: Sequence[Figure]) -> list[Figure]:
    """Return the counted costs that budgets do not show already.

    The paper's activation memory is not what a training step takes: with a fit it is left to the
    charts.
    """
    rows = (record.get("fit") or {}).get("rows")
    if rows is None:
        return list(costs)
    hidden = {_COUNTED_AS.get(row["resource"]) for row in rows if row["budget"]} | {"memory_mb"}
    return [each for each in costs if each.key not in hidden]


def _measured(record: Mapping[str, Any]) -> list[Figure]:
    measured = record.get("measured", {})
    if not {"full", "slim"} <= measured.keys():
        return []
    shown = (
        ("seconds", "Training step", "ms", 1000.0),
        ("peak_bytes", "Peak of a training step", "MiB", 1 / MIB),
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


def _facts(run: StoredRun) -> list[tuple[str, str]]:
    record = run.pruning
    if record is None:
        return [("method", "none: the full network")]
    facts = _step_facts(record.get("fit"))
    facts.append(("method", str(record["method"])))
    if record["settings"].get("sparsity") is not None:
        facts.append(("sparsity", f"{100 * record['settings']['sparsity']:.2f} %"))
    shapes = list(_shapes(record["inputs"]))
    if shapes and not record.get("fit"):
        facts.append(("input", ", ".join(" × ".join(map(str, shape)) for shape in shapes)))
    if record.get("data"):
        facts.append(("scored with", str(record["data"])))
    return facts


def _step_facts(fit: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return how a network that was fitted is trained."""
    if fit is None:
        return []
    step = {name: value for name, value in fit["step"].items() if value not in (None, False)}
    texts = {"input": " × ".join(map(str, step.get("input", ())))}
    if step.get("recompute"):
        texts["recompute"] = "activation checkpointing"
    return [(name, texts.get(name, str(value))) for name, value in step.items()]


def _shapes(value: Any) -> Iterable[list[int]]:
    """Yield the shapes of all tensors in recorded inputs."""
    if isinstance(value, Mapping):
        if "tensor" in value:
            yield list(value["tensor"])
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _shapes(item)


# Settings, environment and hashes, at the end.


def _about(run: StoredRun) -> list[tuple[str, list[tuple[str, str]]]]:
    record, training = run.pruning or {}, run.training or {}
    chosen = record.get("settings", {})
    settings = {name: _text(value) for name, value in chosen.items() if value is not None}
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
    return str(value)


def _page_data(record: Mapping[str, Any], rankings: Sequence[Stage]) -> dict[str, Any]:
    """Return what the slider reads; `quantiles` and thresholds are in the stages."""
    explorer = record["explorer"]
    drawn = ("quantiles", "thresholds", "about")
    return {
        "plan": {"method": record["method"], "sparsity": record["settings"].get("sparsity")},
        "layers": [layer["name"] for layer in record["layers"]],
        "sparsities": explorer["sparsities"],
        "methods": {
            name: {key: value for key, value in method.items() if key not in drawn}
            for name, method in explorer["methods"].items()
        },
        "stages": {s.method: {"cuts": s.cuts, "thresholds": s.thresholds} for s in rankings},
    }
