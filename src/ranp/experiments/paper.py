"""Figures printed in the paper."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

RESOURCES = ("param_mb", "gflops", "memory_mb")
"""Resources in the paper's tables, in their order."""


@cache
def printed() -> Mapping[str, Any]:
    """Return all of them, by section (see `paper.json`)."""
    text = (resources.files("ranp.experiments") / "paper.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def capability(pair: str) -> dict[str, Any]:
    """Return the rows of the table of pruning capability, by method, each with its `check`.

    "exact" rows follow from architecture and rule alone; "near" rows depend on data and
    initialization as well.
    """
    paper = printed()
    near = paper["data_dependent"][pair]
    rows = {"full": {**paper["full"][pair], "sparsity": 0.0, "check": "exact"}}
    for method in ("random", "layerwise"):
        if pair in paper[method]:
            rows[method] = {**paper[method][pair], "check": "exact"}
    for method, row in near["methods"].items():
        sparsity = near["snip_param_sparsity"] if method == "snip" else near["sparsity"]
        rows[method] = {**row, "sparsity": sparsity, "check": "near"}
    return rows
