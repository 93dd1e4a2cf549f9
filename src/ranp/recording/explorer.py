"""What a page needs to choose neurons itself, at any sparsity, exactly as the library does.

A global ranking keeps a prefix of the neurons sorted by importance, whatever the sparsity; a tie
with the last one moves the end of the prefix. So an order and the places of ties are all there is
to a method; what follows (coupling, floor, multiples) is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranp.graph import ChannelGraph
from ranp.pruning import METHODS, Chooser
from ranp.pruning.coupling import Bundle, bundles
from ranp.pruning.methods import Method
from ranp.recording.packing import constant_runs, pack, rising_runs, rounded

PAPER = ("ranp-f", "ranp-m", "weighted", "vanilla", "layerwise", "random")
"""The methods to switch between, where the scores allow it."""

QUANTILES = (0, 5, 25, 50, 75, 95, 100)
_LEVELS = 2**16 - 1


def explorable(chooser: Chooser) -> dict[str, Chooser]:
    """The methods that a page can follow: the paper's and the one that was used, that one first.

    Methods that rank single weights or match budgets are none of them. The user's own resource
    belongs to the method that it was given for.
    """
    own = chooser.choice.method
    rows = [own, *(METHODS[name] for name in PAPER if name != own.name)]
    return {
        row.name: chooser
        if row is own
        else replace(chooser, choice=replace(chooser.choice, method=row, resource=None))
        for row in rows
        if row.selection.name in ("global", "layerwise", "random") and _served(row, chooser)
    }


def _served(row: Method, chooser: Chooser) -> bool:
    """Whether the scores hold what a method ranks by."""
    scores = chooser.scores
    if row is chooser.choice.method or row.criterion is None:
        return True
    needed = [statistic.name for statistic in row.criterion.statistics]
    return scores is not None and scores.batches > 0 and all(n in scores.sums for n in needed)


def explorer(chooser: Chooser) -> dict[str, Any]:
    """Orders of neurons by method, channel classes and their bundles, floor and multiple."""
    graph = chooser.graph
    tied = bundles(graph)
    bundle_of = np.full(graph.classes, len(tied))
    for number, bundle in enumerate(tied):
        bundle_of[bundle.classes] = number
    layers = {name: number for number, name in enumerate(graph.layers)}
    return {
        "classes": rising_runs(np.concatenate([v.neurons for v in graph.layers.values()])),
        "removable": constant_runs(graph.removable.astype(np.int64)),
        "bundle_of": constant_runs(bundle_of),
        "voters": [[layers[name] for name in bundle.votes] for bundle in tied],
        "floor": chooser.choice.floor,
        "multiple": chooser.choice.multiple,
        "methods": {name: _ranking(each, tied) for name, each in explorable(chooser).items()},
    }


def _ranking(chooser: Chooser, tied: list[Bundle]) -> dict[str, Any]:
    selection = chooser.choice.method.selection.name
    importance = chooser.importance
    everything = np.concatenate(list(importance.values()))
    order = np.argsort(-everything, kind="stable")
    result: dict[str, Any] = {
        "about": chooser.choice.method.about,
        "selection": selection,
        "max_sparsity": chooser.max_sparsity(),
    }
    if selection == "global":
        result["ties"] = [list(pair) for pair in _ties(everything[order])]
        result["levels"] = _levels(everything[order])
        result["quantiles"] = [_quantiles(values) for values in importance.values()]
    if selection == "random":
        # The generator draws a permutation, of which the first are removed at any sparsity.
        result["removed"] = pack(
            np.random.RandomState(chooser.choice.seed).permutation(len(everything))
        )
    elif selection == "layerwise":
        order = np.concatenate(
            [np.argsort(-values, kind="stable") + start for start, values in _blocks(importance)]
        )
    if selection != "random" or chooser.choice.floor:
        result["order"] = pack(order)
    if chooser.choice.multiple > 1:
        result["class_order"] = pack(_class_order(chooser.graph, chooser, tied))
    return result


def _blocks(importance: Any) -> Iterator[tuple[int, NDArray[np.float64]]]:
    start = 0
    for values in importance.values():
        yield start, values
        start += len(values)


def _ties(ranked: NDArray[np.float64]) -> Iterator[tuple[int, int]]:
    """[start, end) of neurons of the same importance; those at zero are kept one by one."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(ranked)) + 1, [len(ranked)]]).tolist()
    for start, end in pairwise(starts):
        if end - start > 1 and ranked[start] != 0:
            yield start, end


def _levels(ranked: NDArray[np.float64]) -> dict[str, Any]:
    """Sorted importance as 16 bits of its logarithm: to draw the threshold at any sparsity."""
    positive = ranked[ranked > 0]
    if positive.size == 0:
        return {"low": 0.0, "high": 0.0, "packed": pack(np.zeros(len(ranked), np.int64))}
    low, high = float(np.log10(positive.min())), float(np.log10(positive.max()))
    logs = np.full(len(ranked), low)
    logs[ranked > 0] = np.log10(positive)
    scaled = (logs - low) / ((high - low) or 1.0) * _LEVELS
    return {"low": low, "high": high, "packed": pack(np.rint(scaled).astype(np.int64))}


def _quantiles(values: NDArray[np.float64]) -> list[float]:
    """Importance of a layer's neurons at `QUANTILES` percent, then its mean."""
    found = np.percentile(values, QUANTILES)
    return [rounded(float(v)) for v in (*found, values.mean())]


def _class_order(graph: ChannelGraph, chooser: Chooser, tied: list[Bundle]) -> NDArray[np.int64]:
    """Channel classes by worth, as they are brought back to fill up to a multiple."""
    worth = np.full(graph.classes, -np.inf)
    for name, layer in graph.layers.items():
        np.maximum.at(worth, layer.neurons, chooser.importance[name])
    classes = np.sort(np.concatenate([bundle.classes for bundle in tied]))
    return classes[np.argsort(-worth[classes], kind="stable")]
