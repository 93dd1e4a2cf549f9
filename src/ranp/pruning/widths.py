"""Back to plain code: the constructor's argument that comes nearest to a slim network."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
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
    model, wanted = chooser.model, chooser.costs(alive).gflops
    taken = inspect.signature(type(model).__init__).parameters
    candidates: Iterable[tuple[int | list[int], list[int]]]
    for argument, place in _WIDTHS.items():
        try:
            full = attrgetter(place)(model) if argument in taken else None
        except AttributeError:
            continue
        if isinstance(full, int):
            candidates = _single_widths(chooser, full)
        elif isinstance(full, Sequence) and full and all(isinstance(n, int) for n in full):
            full = list(full)
            candidates = _listed_widths(chooser, alive, full)
        else:
            continue
        costs = (
            (value, chooser.costs(_keep_counts(chooser, counts)).gflops)
            for value, counts in candidates
        )
        value, gflops = min(costs, key=lambda each: abs(each[1] - wanted))
        return Widths(type(model).__name__, argument, value, full, gflops, gflops / wanted - 1)
    raise UsageError(
        f"{type(model).__name__} has no argument for its width (one of "
        f"{', '.join(_WIDTHS)}); build the slim network with plan.apply(model)"
    )


def _single_widths(chooser: Chooser, full: int) -> Iterator[tuple[int, list[int]]]:
    """Yield widths that leave whole numbers in all layers, and the channels of every group."""
    sizes = [len(group.classes) for group in chooser.channel_groups]
    for width in range(1, full + 1):
        if all(size * width % full == 0 for size in sizes):
            yield width, [size * width // full for size in sizes]


def _listed_widths(
    chooser: Chooser, alive: Alive, full: Sequence[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield multiples of what layers of each width keep on average, and channels of every group."""
    layers = chooser.graph.layers
    kept: dict[int, list[int]] = {}
    for layer in layers.values():
        if chooser.graph.removable[layer.neurons].any():
            kept.setdefault(len(layer), []).append(int(alive[layer.neurons].sum()))
    # Channels of a group norm come and go by as many as there are groups.
    step = dict.fromkeys(kept, 1)
    widths = []
    for group in chooser.channel_groups:
        widths.append(max((len(layers[name]) for name in group.positions), default=1))
        for width in {len(layers[name]) for name in group.positions}:
            step[width] = math.lcm(step[width], max(width // len(group.classes), 1))
    for scale in _SCALES:
        slim = {
            width: min(max(round(scale * np.mean(numbers) / step[width]), 1) * step[width], width)
            for width, numbers in kept.items()
        }
        counts = [
            round(len(group.classes) * slim.get(width, width) / width)
            for group, width in zip(chooser.channel_groups, widths, strict=True)
        ]
        yield [slim.get(width, width) for width in full], counts


def _keep_counts(chooser: Chooser, counts: Sequence[int]) -> Alive:
    """Return a network with so many channels of every group; which ones does not matter."""
    alive = ~chooser.graph.removable
    for group, number in zip(chooser.channel_groups, counts, strict=True):
        alive[group.classes[: max(number, 1)]] = True
    return alive
