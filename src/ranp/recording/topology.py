"""How layers follow each other, and which are tied to which."""

from __future__ import annotations

from typing import Any

import numpy as np

from ranp.graph import ChannelGraph


def topology(graph: ChannelGraph) -> dict[str, Any]:
    """Return the output size of each layer, and which layers feed or are added to which.

    Returns:
        `space`, by layer the output's size in space (empty for linear layers, None where it is
        not known); `feeds`, pairs [from, to] of layers where one takes in what the other gave
        last; `adds`, pairs of layers whose outputs are added up.
    """
    spaces: dict[str, list[int]] = {}
    for call in graph.calls:
        fixed = [size for size in call.output[2:] if isinstance(size, int)]
        spaces.setdefault(call.name, fixed)
    last = np.full(graph.classes, -1)  # layer that wrote to a channel class last
    feeds: list[list[int]] = []
    adds: list[list[int]] = []
    for number, layer in enumerate(graph.layers.values()):
        feeds += [[i, number] for i in _writers(last[layer.inputs])]
        if not layer.is_depthwise:
            adds += [[i, number] for i in _writers(last[layer.neurons])]
        last[layer.neurons] = number
    return {"space": [spaces.get(name) for name in graph.layers], "feeds": feeds, "adds": adds}


def _writers(last: np.ndarray[Any, Any]) -> list[int]:
    return [int(i) for i in np.unique(last) if i >= 0]


def describe_layers(graph: ChannelGraph) -> list[dict[str, Any]]:
    """Return by layer how many neurons can be removed, its ties, and why channels must stay."""
    members = {name: set(layer.neurons.tolist()) for name, layer in graph.layers.items()}
    return [
        {
            "name": name,
            "neurons": len(layer),
            "removable": int(graph.removable[layer.neurons].sum()),
            "groups": layer.groups,
            "depthwise": layer.is_depthwise,
            "tied_to": [
                other
                for other, theirs in members.items()
                if other != name and not theirs.isdisjoint(members[name])
            ],
            "why_kept": sorted({graph.pinned[c] for c in members[name] if c in graph.pinned}),
        }
        for name, layer in graph.layers.items()
    ]
