"""The record of a pruning: everything that its report shows."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ranp._version import __version__
from ranp.files import sha256, write_sealed_json
from ranp.pruning import Chooser
from ranp.pruning.allocation import thin_layers
from ranp.recording.blocks import group_layers
from ranp.recording.explorer import QUANTILES, explorer
from ranp.recording.timelines import predict_timelines
from ranp.recording.topology import topology
from ranp.resources import Costs
from ranp.slimming import Plan

SCHEMA = 1
KIND = "pruning"
FILE_NAME = "pruning.json"
_MOST_PREDICTED = 512  # layers: of deeper networks, predicting takes longer than pruning


def make_record(
    chooser: Chooser,
    plan: Plan,
    *,
    command: str | None = None,
    data: str | None = None,
    measured: Mapping[str, Mapping[str, Any]] | None = None,
    timelines: Mapping[str, Mapping[str, Any]] | None = None,
    fit: Mapping[str, Any] | None = None,
    shortfall: str | None = None,
    files: Mapping[str, Path] | None = None,
) -> dict[str, Any]:
    """Return everything that a report shows of a pruning, as plain values.

    Args:
        chooser: Chooser of the plan.
        plan: Plan.
        command: Command line that makes it again.
        data: What the network was scored with, for people.
        measured: By network ("full", "slim"), measured figures of a training step: `seconds` and
            `peak_bytes`.
        timelines: By network ("full", "slim"), the memory of a training step (see
            `ranp.recording.timeline_of`); if not given, predicted at the traced size, except
            for very deep networks.
        fit: Training step and budgets that the network was fitted to (see
            `ranp.fitting.Fitted.about`).
        shortfall: By how much fewer neurons are removed than was asked for, and what would do.
        files: Other files of the run by name; their hashes are stored.
    """
    graph = chooser.graph
    if timelines is None:
        deep = len(graph.layers) > _MOST_PREDICTED
        timelines = {} if deep else predict_timelines(chooser, plan)
    alive = plan.alive(graph)
    full, slim = chooser.costs(), chooser.costs(alive)
    layers, blocks = _layers(chooser, full, plan), group_layers(list(graph.layers))
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "network": plan.network,
        "method": plan.method,
        "settings": dict(plan.settings),
        "protect": list(plan.protect),
        "inputs": dict(plan.inputs),
        "fingerprint": plan.fingerprint,
        "plan": plan.sha256,
        "command": command,
        "data": data,
        "environment": environment(),
        "files": {name: sha256(path.read_bytes()) for name, path in (files or {}).items()},
        "totals": {"full": full.totals(), "slim": slim.totals()},
        "rows": _rows(full, slim),
        "not_counted": list(full.not_counted),
        "layers": layers,
        "blocks": [list(block) for block in blocks],
        "topology": topology(graph),
        "quantiles": list(QUANTILES),
        "explorer": explorer(
            chooser,
            plan.settings.get("sparsity"),
            [layer["rows"] for layer in layers],
            [size for _, size in blocks],
        ),
        "measured": {name: dict(values) for name, values in (measured or {}).items()},
        "timelines": {name: dict(line) for name, line in timelines.items()},
        "fit": None if fit is None else dict(fit),
        "warnings": [*([shortfall] if shortfall else ()), *thin_layers(graph, alive)],
    }


def write_record(directory: str | Path, record: Mapping[str, Any]) -> Path:
    """Write a record into a run's directory, sealed."""
    path = Path(directory) / FILE_NAME
    write_sealed_json(path, record)
    return path


def environment() -> dict[str, str]:
    """Return the software and the machine, as far as results may depend on them."""
    return {
        "ranp": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }


def _rows(full: Costs, slim: Costs) -> list[dict[str, Any]]:
    """Return what every leaf module costs before and after."""
    columns = ("neurons", "flops", "parameters", "activations")
    return [
        {
            "name": before.name,
            "kind": before.kind,
            **{column: [getattr(each, column) for each in (before, after)] for column in columns},
        }
        for before, after in zip(full.layers, slim.layers, strict=True)
    ]


def _layers(chooser: Chooser, full: Costs, plan: Plan) -> list[dict[str, Any]]:
    """Return convolutions and linear layers in order, each with the rows up to the next one."""
    row = {cost.name: number for number, cost in enumerate(full.layers)}
    pinned = ~chooser.graph.removable
    called = dict.fromkeys(row[call.name] for call in chooser.graph.calls)
    layers: list[dict[str, Any]] = [
        {
            "name": name,
            "row": row[name],
            "rows": [row[name]],
            "neurons": len(layer),
            "kept": len(plan.layers[name].kept),
            "fixed": int(pinned[layer.neurons].sum()),
            "depthwise": layer.is_depthwise,
        }
        for name, layer in chooser.graph.layers.items()
    ]
    owner = {layer["row"]: layer for layer in layers}
    current = layers[0]
    for number in dict.fromkeys([*called, *range(len(full.layers))]):
        if number in owner:
            current = owner[number]
        else:
            current["rows"].append(number)
    return layers
