"""From the retained neurons of each layer to the living channel classes of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ranp.graph import Alive, ChannelGraph
from ranp.pruning.equations import Retained
from ranp.pruning.scores import NeuronScores

Floor = int | Literal["auto"]
"""Least number of neurons of every layer; "auto" is what the network needs (`network_floors`)."""

Coupling = Literal["paper", "sum", "max", "mean"]
"""How tied channels are decided: `couple` after the ranking, or one shared score before it."""

REACHING: tuple[Coupling, Floor] = ("mean", "auto")
"""The coupling, with its floor, that removes about what is asked for where many channels are tied:
each class of channels has one score, and no layer is emptied."""


def normalizes_samples(model: nn.Module) -> bool:
    """Return whether a network has group, instance or layer norm; the paper's have batch norm."""
    kinds = (nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)
    return any(isinstance(module, kinds) for module in model.modules())


@dataclass(frozen=True)
class ChannelGroup:
    """Channel classes that the same layers produce: what an addition ties, or one layer's own.

    Attributes:
        classes: Numbers of the classes.
        positions: By name of the layer, for each of its neurons the index of its class in
            `classes`; -1 for a neuron of another group.
    """

    classes: NDArray[np.int64]
    positions: Mapping[str, NDArray[np.int64]]

    @cached_property
    def one_to_one(self) -> frozenset[str]:
        """The layers that have one neuron in each of the classes."""
        size, layers = len(self.classes), self.positions.items()
        return frozenset(name for name, at in layers if len(at) == size and at.min() >= 0)


def channel_groups(graph: ChannelGraph) -> list[ChannelGroup]:
    """Group the removable classes by the layers that produce them.

    Depthwise layers do not count: their channels follow those of the layer that feeds them.
    """
    producers: dict[int, list[str]] = {n: [] for n in np.flatnonzero(graph.removable).tolist()}
    for name, layer in graph.layers.items():
        if not layer.is_depthwise:
            for number in producers.keys() & set(layer.neurons.tolist()):
                producers[number].append(name)
    members: dict[tuple[str, ...], list[int]] = {}
    for number, by_layers in producers.items():
        members.setdefault(tuple(by_layers), []).append(number)
    groups = []
    for names, classes in members.items():
        index = np.full(graph.classes, -1)
        index[classes] = np.arange(len(classes))
        positions = {name: index[graph.layers[name].neurons] for name in names}
        groups.append(ChannelGroup(np.array(classes), positions))
    return groups


def couple(graph: ChannelGraph, retained: Retained, groups: Sequence[ChannelGroup]) -> Alive:
    """Return the living channels by the paper's rule: tied layers get their largest retained count.

    Of layers that produce the same channels (an addition ties them), the one that retains the most
    decides which. Where a channel class holds several neurons of one layer (group norm and grouped
    convolutions tie them), the layer keeps as many classes as its count of retained neurons fills,
    those with the largest share of them. Pinned channels, the last layer's among them, always stay.
    """
    alive = ~graph.removable
    for group in groups:
        masks = [_mask_of_classes(group, name, retained[name]) for name in group.positions]
        if masks:
            alive[group.classes] = max(masks, key=np.count_nonzero)
    return alive


def _mask_of_classes(
    group: ChannelGroup, name: str, retained: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return the mask of the classes that a layer's retained neurons fill, the fullest first."""
    positions, classes = group.positions[name], len(group.classes)
    mask = np.zeros(classes, bool)
    if name in group.one_to_one:
        mask[positions] = retained
        return mask
    inside = positions >= 0
    neurons = np.bincount(positions[inside], minlength=classes)
    held = np.bincount(positions[inside & retained], minlength=classes)
    if held.any():
        fullest = np.argsort(-held / neurons, kind="stable")
        needed = np.searchsorted(np.cumsum(neurons[fullest]), held.sum()) + 1
        mask[fullest[:needed]] = True
    return mask


def apply_floors(
    graph: ChannelGraph, alive: Alive, s: NeuronScores, floors: Mapping[str, int]
) -> Alive:
    """Bring back the best removed neurons of layers that keep fewer than their floor."""
    alive = alive.copy()
    for name, layer in graph.layers.items():
        dead = np.flatnonzero(~alive[layer.neurons])
        missing = max(0, floors[name] - (len(layer) - len(dead)))
        best = dead[np.argsort(-s[name][dead], kind="stable")[:missing]]
        alive[layer.neurons[best]] = True
    return alive


def round_up_to_multiple(
    graph: ChannelGraph,
    alive: Alive,
    s: NeuronScores,
    multiple: int,
    groups: Sequence[ChannelGroup],
) -> Alive:
    """Bring back the best removed channels until counts are multiples, or whole."""
    alive = alive.copy()
    score = class_scores(graph, s, "max")
    for group in groups:
        dead = group.classes[~alive[group.classes]]
        missing = (len(dead) - len(group.classes)) % multiple
        alive[dead[np.argsort(-score[dead], kind="stable")[:missing]]] = True
    return alive


def share_scores(graph: ChannelGraph, s: NeuronScores, coupling: Coupling) -> NeuronScores:
    """Give all neurons of a channel class the sum, max or mean of their scores.

    So any ranking treats them alike. The coupling "paper" leaves scores as they are: there tied
    layers are reconciled after the ranking, by `couple`.
    """
    if coupling == "paper":
        return s
    score = class_scores(graph, s, coupling)
    return {name: score[layer.neurons] for name, layer in graph.layers.items()}


def class_scores(
    graph: ChannelGraph, s: NeuronScores, reduction: Literal["sum", "max", "mean"]
) -> NDArray[np.float64]:
    """Reduce the scores of all neurons of each channel class to one."""
    classes = np.concatenate([layer.neurons for layer in graph.layers.values()])
    scores = np.concatenate([s[name] for name in graph.layers])
    if reduction == "max":
        largest = np.full(graph.classes, -np.inf)
        np.maximum.at(largest, classes, scores)
        return largest
    total = np.bincount(classes, scores, minlength=graph.classes)
    members = np.bincount(classes, minlength=graph.classes) if reduction == "mean" else 1
    return total / np.maximum(members, 1)
