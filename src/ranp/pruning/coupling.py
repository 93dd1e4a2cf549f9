"""From retained neurons to living channel classes: what is tied together is decided together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

REACHING: tuple[Coupling, Floor] = ("mean", "auto")
"""The coupling, with its floor, that removes about what is asked for where many channels are tied:
each class of channels has one score, and no layer is emptied."""


def normalizes_samples(model: nn.Module) -> bool:
    """Return whether a network has group, instance or layer norm, unlike those of the paper."""
    kinds = (nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)
    return any(isinstance(module, kinds) for module in model.modules())


@dataclass(frozen=True)
class Bundle:
    """Channel classes that the same layers produce.

    Attributes:
        classes: The classes.
        votes: For each of the layers, the place of its neurons' classes among `classes`, -1 where
            a neuron is of another bundle.
    """

    classes: NDArray[np.int64]
    votes: Mapping[str, NDArray[np.int64]]


def bundles(graph: ChannelGraph) -> list[Bundle]:
    """Sort the removable classes by the layers that produce them.

    Depthwise layers have no say: their channels follow those that feed them.
    """
    voters = [layer for layer in graph.layers.values() if not layer.is_depthwise]
    produced = np.zeros((len(voters), graph.classes), bool)
    for row, layer in zip(produced, voters, strict=True):
        row[layer.neurons] = True
    removable = np.flatnonzero(graph.removable)
    producers = np.packbits(produced[:, removable], axis=0).T.copy()  # a row of bits per class
    together: dict[bytes, list[int]] = {}
    for number, row in zip(removable.tolist(), producers, strict=True):
        together.setdefault(row.tobytes(), []).append(number)
    result = []
    for members in together.values():
        classes = np.array(members)
        place = np.full(graph.classes, -1)
        place[classes] = np.arange(len(classes))
        says = [layer for layer, row in zip(voters, produced, strict=True) if row[classes[0]]]
        result.append(Bundle(classes, {layer.name: place[layer.neurons] for layer in says}))
    return result


def couple(graph: ChannelGraph, retained: Retained, tied: Sequence[Bundle]) -> Alive:
    """Return the living channels by the paper's rule: tied layers get their largest retained count.

    Of layers that produce the same channels (an addition ties them), the one that retains the most
    decides which. Where a channel class holds several neurons of one layer (group norm and grouped
    convolutions tie them), the layer keeps as many classes as its count of retained neurons fills,
    those with the largest share of them. Pinned channels, the last layer's among them, always stay.

    Args:
        graph: The channel graph.
        retained: Each layer's own choice.
        tied: `bundles(graph)`.
    """
    alive = ~graph.removable
    for bundle in tied:
        best = np.zeros(len(bundle.classes), bool)
        for name, place in bundle.votes.items():
            choice = _classes_filled(place, retained[name], len(bundle.classes))
            if choice.sum() > best.sum():
                best = choice
        alive[bundle.classes[best]] = True
    return alive


def _classes_filled(
    place: NDArray[np.int64], retained: NDArray[np.bool_], classes: int
) -> NDArray[np.bool_]:
    """Return the classes that a layer's retained neurons fill, the fullest first."""
    choice = np.zeros(classes, bool)
    if len(place) == classes and place.min() >= 0:  # each class holds one neuron of the layer
        choice[place] = retained
        return choice
    neurons = np.bincount(place[place >= 0], minlength=classes)
    held = np.bincount(place[(place >= 0) & retained], minlength=classes)
    if held.any():
        fullest = np.argsort(-held / neurons, kind="stable")
        needed = np.searchsorted(np.cumsum(neurons[fullest]), held.sum()) + 1
        choice[fullest[:needed]] = True
    return choice


def at_least(
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


def in_multiples(
    graph: ChannelGraph, alive: Alive, s: NeuronScores, multiple: int, tied: Sequence[Bundle]
) -> Alive:
    """Bring back the best removed channels until counts are multiples, or whole."""
    alive = alive.copy()
    worth = np.full(graph.classes, -np.inf)
    for name, layer in graph.layers.items():
        np.maximum.at(worth, layer.neurons, s[name])
    for bundle in tied:
        dead = bundle.classes[~alive[bundle.classes]]
        missing = (len(dead) - len(bundle.classes)) % multiple
        alive[dead[np.argsort(-worth[dead], kind="stable")[:missing]]] = True
    return alive


def share(graph: ChannelGraph, s: NeuronScores, how: Coupling) -> NeuronScores:
    """Give all neurons of a channel class one score: the sum, largest or mean of theirs.

    So they are retained or removed together by any ranking. "paper" leaves scores alone: there
    tied layers are reconciled after the ranking, by `couple`.
    """
    if how == "paper":
        return s
    total = np.full(graph.classes, -np.inf) if how == "max" else np.zeros(graph.classes)
    members = np.zeros(graph.classes)
    add = np.maximum.at if how == "max" else np.add.at
    for name, layer in graph.layers.items():
        add(total, layer.neurons, s[name])
        np.add.at(members, layer.neurons, 1)
    if how == "mean":
        total = total / np.maximum(members, 1)
    return {name: total[layer.neurons] for name, layer in graph.layers.items()}
