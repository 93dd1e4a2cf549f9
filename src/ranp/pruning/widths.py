"""Back to plain code: the constructor's argument that comes nearest to a slim network."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from ranp.errors import UsageError
from ranp.graph import Alive
from ranp.pruning.choose import Chooser

_WIDTHS = {
    "channels": "channels",
    "filters": "filters",
    "features_per_stage": "encoder.output_channels",
    "init_filters": "init_filters",
    "base_width": "base_width",
}
"""Arguments that say how wide a network is, and where its instances keep them."""


_SCALES = sorted(np.geomspace(0.6, 1.6, 81).tolist(), key=lambda scale: abs(math.log(scale)))
"""Factors that averages are tried with, the least change first."""


@dataclass(frozen=True)
class Widths:
    """An argument of a network's constructor that comes nearest to a slim network.

    Attributes:
        network: Class of the network.
        argument: Name of the argument.
        value: What to give in its place; all other arguments stay.
        full: What the full network has.
        gflops: GFLOPs of the network with that value.
        difference: How many more FLOPs that are than those of the slim network, as a share.
    """

    network: str
    argument: str
    value: int | list[int]
    full: int | list[int]
    gflops: float
    difference: float

    def __str__(self) -> str:
        """Return the argument as code."""
        return f"{self.argument}={self.value}"

    def __repr__(self) -> str:
        return (
            f"{self.network}({self.argument}={self.value}) in place of {self.full}: "
            f"{100 * self.difference:+.1f} % FLOPs against the slim network"
        )


def nearest_widths(chooser: Chooser, alive: Alive) -> Widths:
    """Return the constructor's argument that comes nearest to a slim network.

    Where the argument lists widths, each becomes what the layers that have it keep on average, all
    scaled to the nearest FLOPs; a single width becomes the one with the nearest FLOPs.

    Raises:
        UsageError: No argument says how wide the network is.
    """
    model = chooser.model
    taken = inspect.signature(type(model).__init__).parameters
    value: int | list[int]
    for argument, place in _WIDTHS.items():
        try:
            full = attrgetter(place)(model) if argument in taken else None
        except AttributeError:
            continue
        if isinstance(full, int):
            value, network = _scaled_width(chooser, alive, full)
        elif isinstance(full, Sequence) and full and all(isinstance(n, int) for n in full):
            value, network = _scaled_widths(chooser, alive, full)
        else:
            continue
        gflops = chooser.costs(network).gflops
        difference = gflops / chooser.costs(alive).gflops - 1
        whole = full if isinstance(full, int) else list(full)
        return Widths(type(model).__name__, argument, value, whole, gflops, difference)
    raise UsageError(
        f"{type(model).__name__} keeps no argument that says how wide it is (one of "
        f"{', '.join(_WIDTHS)}); build the slim network with plan.apply(model)"
    )


def _scaled_width(chooser: Chooser, alive: Alive, full: int) -> tuple[int, Alive]:
    """Return the width with the nearest FLOPs, of those that leave whole numbers in all layers."""
    sizes = [len(group.classes) for group in chooser.channel_groups]
    whole = [n for n in range(1, full + 1) if all(size * n % full == 0 for size in sizes)]
    networks = {n: _keep_counts(chooser, [size * n // full for size in sizes]) for n in whole}
    wanted = chooser.costs(alive).gflops
    value = min(whole, key=lambda n: abs(chooser.costs(networks[n]).gflops - wanted))
    return value, networks[value]


def _scaled_widths(chooser: Chooser, alive: Alive, full: Sequence[int]) -> tuple[list[int], Alive]:
    """Return the widths that layers of each width keep on average, and the network of them."""
    layers = chooser.graph.layers
    kept: dict[int, list[int]] = {}
    for layer in layers.values():
        if chooser.graph.removable[layer.neurons].any():
            kept.setdefault(len(layer), []).append(int(alive[layer.neurons].sum()))
    # Channels of a group norm come and go by as many as there are groups.
    step: dict[int, int] = {}
    for group in chooser.channel_groups:
        for name in group.positions:
            width = len(layers[name])
            step[width] = math.lcm(step.get(width, 1), max(width // len(group.classes), 1))
    means = {width: float(np.mean(numbers)) for width, numbers in kept.items()}
    wanted = chooser.costs(alive).gflops

    def scaled(scale: float) -> dict[int, int]:
        return {
            width: min(max(round(scale * mean / step.get(width, 1)), 1) * step.get(width, 1), width)
            for width, mean in means.items()
        }

    def network(slim: dict[int, int]) -> Alive:
        counts = []
        for group in chooser.channel_groups:
            width = max((len(layers[name]) for name in group.positions), default=1)
            counts.append(round(len(group.classes) * slim.get(width, width) / width))
        return _keep_counts(chooser, counts)

    slim = min(
        map(scaled, _SCALES), key=lambda slim: abs(chooser.costs(network(slim)).gflops - wanted)
    )
    return [slim.get(width, width) for width in full], network(slim)


def _keep_counts(chooser: Chooser, counts: Sequence[int]) -> Alive:
    """Return a network with so many channels of every group; which ones does not matter."""
    alive = ~chooser.graph.removable
    for group, number in zip(chooser.channel_groups, counts, strict=True):
        alive[group.classes[: max(number, 1)]] = True
    return alive
