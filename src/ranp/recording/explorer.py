"""The table behind the page's slider: what layers keep and cost, by method and sparsity."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranp.display import MIB
from ranp.pruning import METHODS, Chooser
from ranp.pruning.methods import Method
from ranp.pruning.selection import GLOBAL
from ranp.resources import count_choices

PAPER = ("ranp-f", "ranp-m", "weighted", "vanilla", "layerwise", "random")
"""The methods to switch between, where the scores allow it."""

QUANTILES = (0, 5, 25, 50, 75, 95, 100)
LEVELS = 2**16 - 1
"""What a cost of the full network is packed as."""

_STEPS = (100, 50, 20)
_CELLS = 40_000  # layers x methods x sparsities: what a page and the time to make it have room for


def explorable(chooser: Chooser) -> dict[str, Chooser]:
    """Return the methods to switch between: the one that was used, then the paper's.

    A resource of the user's own belongs to the method that it was given for. A network of very
    many layers has the method that was used alone.
    """
    own = chooser.choice.method
    rows = [own, *(METHODS[name] for name in PAPER if name != own.name)]
    if len(chooser.graph.layers) * len(rows) * _STEPS[-1] > _CELLS:
        rows = [own]
    return {
        row.name: chooser
        if row is own
        else replace(chooser, choice=replace(chooser.choice, method=row, resource=None))
        for row in rows
        if row is own or _is_scored(row, chooser)
    }


def _is_scored(row: Method, chooser: Chooser) -> bool:
    """Return whether the scores hold what a method ranks by."""
    scores = chooser.scores
    if row.criterion is None:
        return True
    needed = [statistic.name for statistic in row.criterion.statistics]
    return scores is not None and scores.batches > 0 and all(n in scores.sums for n in needed)


def explorer(
    chooser: Chooser, planned: float | None, rows: Sequence[Sequence[int]], sizes: Sequence[int]
) -> dict[str, Any]:
    """Tabulate the choices of every method at sparsities from 0 to 1.

    Args:
        chooser: Chooser of the plan.
        planned: Sparsity of the plan; None if it was not made by one.
        rows: For each layer, the numbers of its modules among the counted ones.
        sizes: Number of layers of each block.

    Returns:
        `sparsities`, and by method of `methods`: `kept`, packed neurons [sparsities, blocks];
        `flops`, `parameters`, `activations`, the same as shares of the full network's, packed from
        0 to `LEVELS`; `totals` of each network; `empty`, at each sparsity the number of the first
        layer that would be empty, and of all such; `max_sparsity`. A ranking over all layers also
        has `thresholds`, and `quantiles` of importance in each block.
    """
    choosers = explorable(chooser)
    cells = len(chooser.graph.layers) * len(choosers)
    steps = next((n for n in _STEPS if cells * n <= _CELLS), _STEPS[-1])
    largest = {name: candidate.max_sparsity() for name, candidate in choosers.items()}
    grid = {i / steps for i in range(steps + 1)} | set(largest.values())
    sparsities = sorted(grid if planned is None else grid | {planned})
    ends = [0, *accumulate(sizes)]
    blocks = [range(first, end) for first, end in pairwise(ends)]
    modules = [[row for layer in block for row in rows[layer]] for block in blocks]
    return {
        "sparsities": sparsities,
        "methods": {
            name: {
                "about": candidate.choice.method.about,
                "max_sparsity": largest[name],
                **_tabulate(candidate, sparsities, modules),
                **_ranking(candidate, sparsities, blocks),
            }
            for name, candidate in choosers.items()
        },
    }


def _tabulate(
    chooser: Chooser, sparsities: Sequence[float], modules: Sequence[list[int]]
) -> dict[str, Any]:
    graph = chooser.graph
    chosen = (chooser.choose(sparsity) for sparsity in sparsities)
    choices = np.stack([graph.all_alive(), *chosen], axis=1)
    counted = count_choices(chooser.model, graph, choices)
    table = {
        key: np.stack([column[rows].sum(axis=0) for rows in modules], axis=1)
        for key, column in counted.items()
    }
    totals = {key: values.sum(axis=1)[1:].tolist() for key, values in table.items()}
    shares = {
        key: np.rint(LEVELS * values[1:] / np.maximum(values[0], 1)).astype(np.int64)
        for key, values in table.items()
    }
    lives = np.stack([choices[layer.neurons].any(axis=0) for layer in graph.layers.values()])
    empty = [np.flatnonzero(~column).tolist() for column in lives.T[1:]]
    return {
        "kept": _pack(table["neurons"][1:]),
        **{key: _pack(shares[key]) for key in ("flops", "parameters", "activations")},
        "totals": [
            [flops / 1e9, parameters * 4 / MIB, activations * 4 / MIB, neurons]
            for flops, parameters, activations, neurons in zip(
                *(totals[k] for k in ("flops", "parameters", "activations", "neurons")), strict=True
            )
        ],
        "empty": [[layers[0], len(layers)] if layers else None for layers in empty],
    }


def _ranking(
    chooser: Chooser, sparsities: Sequence[float], blocks: Sequence[range]
) -> Mapping[str, Any]:
    """Return what a ranking over all layers keeps from, and the spread of importance by block."""
    if chooser.choice.method.selection is not GLOBAL:
        return {}
    importance = list(chooser.importance.values())
    ranked = np.sort(np.concatenate(importance))[::-1]
    kept = [int(len(ranked) * (1 - sparsity)) for sparsity in sparsities]
    values = [np.concatenate([importance[layer] for layer in block]) for block in blocks]
    return {
        "thresholds": [_rounded(float(ranked[k - 1])) if k else None for k in kept],
        "quantiles": [  # of each block, and then its mean
            [_rounded(float(v)) for v in (*np.percentile(block, QUANTILES), block.mean())]
            for block in values
        ],
    }


def _pack(values: NDArray[np.integer[Any]]) -> dict[str, str]:
    """Return unsigned integers as base64 of 2 or 4 bytes each, little-endian."""
    kind = "u2" if values.size == 0 or values.max() < 2**16 else "u4"
    return {"dtype": kind, "base64": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()}


def _rounded(value: float) -> float:
    """Round to six significant digits: enough to draw and to read."""
    return float(f"{value:.6g}")
