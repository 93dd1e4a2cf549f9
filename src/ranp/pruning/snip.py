"""SNIP made dense: single weights are pruned, then the neurons that nothing passes through go."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ranp.graph import Alive, ChannelGraph, Layer
from ranp.pruning.equations import largest


def select_weights(
    graph: ChannelGraph, sensitivity: Mapping[str, Tensor], sparsity: float
) -> Alive:
    """Return the channels that survive SNIP NP: top-k over weights, then removal of dead neurons.

    Args:
        graph: The channel graph.
        sensitivity: |g| of every weight by layer, a row per neuron (Eq. 2; its normalisation does
            not change the order).
        sparsity: The share of weights to remove. Layers that must stay whole, the last one among
            them, keep all of theirs.
    """
    ranked = [n for n, layer in graph.layers.items() if graph.removable[layer.neurons].any()]
    ranked = [name for name in ranked if name in sensitivity]
    survives = {name: np.ones(rows.numel(), bool) for name, rows in sensitivity.items()}
    everything = torch.cat([sensitivity[name].reshape(-1) for name in ranked]).numpy()
    ends = np.cumsum([sensitivity[name].numel() for name in ranked])[:-1]
    survives.update(zip(ranked, np.split(largest(everything, sparsity), ends), strict=True))
    connections = {name: _connections(graph.layers[name], rows) for name, rows in survives.items()}
    return remove_dead(graph, connections)


def _connections(layer: Layer, survives: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which input channel reaches which neuron, from which single weights survive."""
    neurons, inputs = len(layer), len(layer.inputs)
    per_group = inputs // layer.groups
    within: NDArray[np.bool_] = np.any(survives.reshape(neurons, per_group, -1), axis=2)
    if layer.groups == 1:
        return within
    result = np.zeros((neurons, inputs), bool)
    for group, rows in enumerate(np.array_split(np.arange(neurons), layer.groups)):
        columns = slice(group * per_group, (group + 1) * per_group)
        result[rows, columns] = within[rows]
    return result


def remove_dead(graph: ChannelGraph, connections: Mapping[str, NDArray[np.bool_]]) -> Alive:
    """Return the channels that signals still pass through: reached from before, and needed behind.

    Args:
        graph: The channel graph.
        connections: By layer, which input channel reaches which neuron.
    """
    alive = graph.all_alive()
    while True:
        reached, needed = ~graph.removable, ~graph.removable
        for name, layer in graph.layers.items():
            if layer.is_depthwise or name not in connections:
                continue
            live = connections[name] & alive[layer.inputs] & alive[layer.neurons][:, None]
            reached[layer.neurons[live.any(1)]] = True
            needed[layer.inputs[live.any(0)]] = True
        still = alive & reached & needed
        if np.array_equal(still, alive):
            return alive
        alive = still
