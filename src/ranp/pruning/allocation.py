"""Allocations of width by rule: how many neurons each layer keeps, without scores.

A slim network that is initialised afresh takes over nothing from the full one but the number of
neurons per layer, so a rule for these numbers is a method of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ranp.errors import first_of, name_settings
from ranp.graph import IS_OUTPUT, Alive, ChannelGraph, Layer
from ranp.pruning.coupling import ChannelGroup
from ranp.pruning.equations import check_sparsity
from ranp.pruning.selection import Selection
from ranp.resources.budgets import Budget

if TYPE_CHECKING:
    from ranp.pruning.choose import Chooser

Shares = NDArray[np.float64]

_EXACT = 1e-9
"""Rounding errors that do not make a share of n neurons one neuron more."""

_TILT = 0.3
"""How much wider and narrower, in logarithms, a refinement makes the layers at both ends."""


def power(exponent: float) -> Selection:
    r"""Return the rule that keeps the share :math:`p_l = \min(1, k\,c_l^{-a})` of every layer.

    :math:`c_l` is what the network saves without one neuron of the layer (see `marginal_costs`),
    and :math:`k` is such that :math:`\sum_l p_l n_l = (1 - \kappa) \sum_l n_l` at the sparsity
    :math:`\kappa`. With :math:`a = 0` every layer keeps the same share; :math:`a < 0` keeps the
    expensive layers wide, :math:`a > 0` the cheap ones. Layers that are tied have one share.
    """

    def select(chooser: Chooser, sparsity: float) -> Alive:
        costs = np.maximum(chooser.marginal_costs, 1e-300)
        powers = -exponent * np.log(costs / costs.max())
        return allocate(
            chooser.graph, chooser.channel_groups, np.exp(powers - powers.max()), sparsity
        )

    return Selection("power", select, ranked=False)


def proportional(weights: Sequence[float]) -> Selection:
    """Return the rule that keeps shares proportional to weights, one for every channel group."""

    def select(chooser: Chooser, sparsity: float) -> Alive:
        return allocate(chooser.graph, chooser.channel_groups, np.array(weights), sparsity)

    return Selection("proportional", select, ranked=False)


def marginal_costs(chooser: Chooser) -> NDArray[np.float64]:
    """Return what the full network saves without one channel of each group.

    That is what computing the channel costs and what is spent on reading it: FLOPs, or the
    resource of the choice. A cost for every layer, given by the user, counts as it is.
    """
    resource = chooser.choice.resource
    if resource is not None and not isinstance(resource, str):
        groups = chooser.channel_groups
        return np.array([np.mean([resource[n] for n in g.positions] or [0]) for g in groups])
    total = Budget("activations" if resource == "memory" else resource or "flops", 1.0).total
    before, saved = total(chooser.costs()), []
    for group in chooser.channel_groups:
        without = chooser.graph.all_alive()
        without[group.classes[-1]] = False
        saved.append(before - total(chooser.costs(without)))
    return np.array(saved)


def allocate(
    graph: ChannelGraph, groups: Sequence[ChannelGroup], weights: Shares, sparsity: float
) -> Alive:
    """Keep shares proportional to weights, clipped to one; the first channels of every group.

    The sparsity is a share of all removable channels. No group loses all its channels.
    """
    check_sparsity(sparsity)
    alive = ~graph.removable
    sizes = np.array([len(group.classes) for group in groups], np.float64)
    widths = sizes * _shares(sizes, weights, 1 - sparsity)
    for group, width in zip(groups, widths.tolist(), strict=True):
        alive[group.classes[: max(1, math.ceil(width - _EXACT))]] = True
    return alive


def _shares(sizes: Shares, weights: Shares, kept: float) -> Shares:
    """Return min(1, k w), k such that these shares of the sizes add up to what is kept of all."""
    whole = np.zeros(len(sizes), bool)
    while not whole.all():  # layers that are whole leave more for the others
        k = (kept * sizes.sum() - sizes[whole].sum()) / (sizes * weights)[~whole].sum()
        more = ~whole & (k * weights >= 1)
        if not more.any():
            return np.where(whole, 1.0, k * weights)
        whole |= more
    return np.ones_like(sizes)


def tilted_weights(chooser: Chooser, alive: Alive) -> dict[str, list[float]]:
    """Return the weights of allocations around another one, by what they change.

    Groups with expensive channels (high resolution) are made wider or narrower against those
    with cheap ones, and early ones (an encoder) against late ones (a decoder).
    """
    groups, order = chooser.channel_groups, list(chooser.graph.layers)
    shares = np.array([alive[group.classes].mean() for group in groups])
    costs = np.log(np.maximum(chooser.marginal_costs, 1e-300))
    places = np.array([np.mean([order.index(n) for n in g.positions] or [0]) for g in groups])
    tilts = {
        "+high-resolution": _scaled_to_plus_minus_one(costs),
        "+low-resolution": -_scaled_to_plus_minus_one(costs),
        "+late": _scaled_to_plus_minus_one(places),
        "+early": -_scaled_to_plus_minus_one(places),
    }
    return {name: (shares * np.exp(_TILT * tilt)).tolist() for name, tilt in tilts.items()}


def _scaled_to_plus_minus_one(values: Shares) -> Shares:
    spread = float(np.ptp(values))
    return 2 * (values - values.min()) / spread - 1 if spread else np.zeros_like(values)


def thin_layers(graph: ChannelGraph, alive: Alive) -> list[str]:
    """Return warnings about layers that are left too thin, one line each."""
    layers, single, notes = graph.layers.items(), single_neuron_layers(graph, alive), []
    if single:
        named = first_of([f"'{name}'" for name in single], 1)
        keep = f"layer {named} keeps" if len(single) == 1 else f"layers {named} keep"
        give = name_settings(floor="auto")
        notes.append(f"{keep} a single channel; prune less, or give {give}")
    heads = {name: int(alive[h.inputs].sum()) for name, h in layers if _is_output(graph, h)}
    short = [
        (left, name)
        for name, left in heads.items()
        if left < len(graph.layers[name]) <= len(graph.layers[name].inputs)
    ]
    if short:
        left, name = min(short)
        notes.append(
            f"the last layer '{name}' has {len(graph.layers[name])} classes and reads {left} of "
            f"{len(graph.layers[name].inputs)} channels; prune less, or give "
            f"{name_settings(floor=len(graph.layers[name]))}"
        )
    return notes


def single_neuron_layers(graph: ChannelGraph, alive: Alive) -> list[str]:
    """Return the layers that keep one of several neurons."""
    layers = graph.layers.items()
    return [name for name, layer in layers if alive[layer.neurons].sum() == 1 < len(layer)]


def _is_output(graph: ChannelGraph, layer: Layer) -> bool:
    """Return whether a layer's neurons are outputs of the network."""
    return all(graph.pinned.get(number) == IS_OUTPUT for number in layer.neurons.tolist())


def network_floors(graph: ChannelGraph, groups: Sequence[ChannelGroup]) -> dict[str, int]:
    """Return the least number of neurons of every layer that what reads it can work with.

    No layer keeps a single neuron, and what a last layer reads has as many channels as that layer
    has outputs (classes), or a quarter of what it reads in the full network if that is less: a head
    with four classes behind three channels cannot tell all of them apart.
    """
    floors = {name: min(2, len(layer)) for name, layer in graph.layers.items()}
    for head in graph.layers.values():
        read = head.inputs[graph.removable[head.inputs]]
        if not _is_output(graph, head) or not len(read):
            continue
        share = min(len(head), math.ceil(len(read) / 4)) / len(read)
        for group in groups:
            mine = np.isin(group.classes, read).sum()
            for name, positions in group.positions.items():
                per_class = (positions >= 0).sum() / len(group.classes)
                needed = math.ceil(mine * share * per_class - _EXACT)
                floors[name] = min(len(graph.layers[name]), max(floors[name], needed))
    return floors
