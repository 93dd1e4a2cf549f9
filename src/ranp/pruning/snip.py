"""SNIP made dense: single weights are pruned, then the neurons that nothing passes through go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ranp.graph import Alive, ChannelGraph, Layer
from ranp.pruning.equations import top_k_mask

Readers = Literal["any", "all", "none"]
"""Which of the layers that read a neuron must use it for it to stay: any, all, or none."""


def select_weights(
    graph: ChannelGraph,
    sensitivity: Mapping[str, Tensor],
    sparsity: float,
    *,
    rank_last: bool = False,
    readers: Readers = "any",
) -> Alive:
    """Return the channels that survive SNIP NP: top-k over weights, then removal of dead neurons.

    Args:
        graph: The channel graph.
        sensitivity: |g| of every weight by layer, a row per neuron (Eq. 2; its normalisation does
            not change the order).
        sparsity: The share of weights to remove.
        rank_last: Whether layers whose neurons must stay, the last one among them, and biases are
            ranked with the others, as with the paper's authors. These layers keep all their weights
            in any case. A fresh bias is zero, and so is its sensitivity.
        readers: Which of the layers that read a neuron must need it (see `remove_dead`).
    """
    pruned = {n for n, layer in graph.layers.items() if graph.removable[layer.neurons].any()}
    ranked = [n for n in graph.layers if n in sensitivity and (rank_last or n in pruned)]
    biases = [len(graph.layers[n]) for n in ranked if rank_last and f"{n}.bias" in graph.tensors]
    survives = {name: np.ones(rows.numel(), bool) for name, rows in sensitivity.items()}
    weights = [sensitivity[name].reshape(-1) for name in ranked]
    everything = torch.cat([*weights, torch.zeros(sum(biases))]).numpy()
    ends = np.cumsum([len(each) for each in weights])
    retained = np.split(top_k_mask(everything, sparsity), ends)
    masks = zip(ranked, retained[:-1], strict=True)
    survives.update((name, mask) for name, mask in masks if name in pruned)
    connections = {name: _connections(graph.layers[name], rows) for name, rows in survives.items()}
    return remove_dead(graph, connections, readers)


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


def remove_dead(
    graph: ChannelGraph, connections: Mapping[str, NDArray[np.bool_]], readers: Readers = "any"
) -> Alive:
    """Return the channels that signals still pass through: reached from before, and needed behind.

    Forward first, then backward. No neuron is lost by a second turn: what a living neuron reads is
    needed, unless readers is "all". `connections` say, by layer, which input channel reaches which
    neuron.

    The readers "any" keep a neuron that one of the layers behind it needs. "all" removes one that a
    layer behind it ignores, even if another needs it, and none in front of a depthwise layer;
    "none" removes none for what is behind it: the paper's authors.
    """
    alive = graph.all_alive()
    for keep in (_reached, partial(_needed, readers=readers)):
        while not np.array_equal(still := alive & keep(graph, connections, alive), alive):
            alive = still
    return alive


def _live(
    graph: ChannelGraph, connections: Mapping[str, NDArray[np.bool_]], alive: Alive
) -> Iterator[tuple[Layer, NDArray[np.bool_]]]:
    """Yield layers with their living connections; depthwise ones decide nothing."""
    for name, layer in graph.layers.items():
        if not layer.is_depthwise and name in connections:
            ends = alive[layer.inputs] & alive[layer.neurons][:, None]
            yield layer, connections[name] & ends


def _reached(
    graph: ChannelGraph, connections: Mapping[str, NDArray[np.bool_]], alive: Alive
) -> Alive:
    """Return the channels that have an input."""
    reached = ~graph.removable
    for layer, live in _live(graph, connections, alive):
        reached[layer.neurons[live.any(1)]] = True
    return reached


def _needed(
    graph: ChannelGraph,
    connections: Mapping[str, NDArray[np.bool_]],
    alive: Alive,
    readers: Readers,
) -> Alive:
    """Return the channels that layers behind them need."""
    if readers == "none":
        return graph.all_alive()
    spared, uses = ~graph.removable, np.zeros(graph.classes, bool)
    ignores = uses.copy()
    for layer, live in _live(graph, connections, alive):
        used = np.zeros(graph.classes, bool)
        used[layer.inputs[live.any(0)]] = True
        uses |= used
        ignores[layer.inputs] |= ~used[layer.inputs]
    if readers == "any":
        return spared | uses
    for layer in graph.layers.values():
        if layer.is_depthwise:
            spared[layer.inputs] = True
    return spared | ~ignores
