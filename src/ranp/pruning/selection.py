"""How neurons are selected at a sparsity; a new way is a function and a `Selection`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ranp.graph import Alive
from ranp.pruning.coupling import couple
from ranp.pruning.equations import ABS, Retained, check_sparsity, split_by_layer, top_k
from ranp.pruning.scores import NeuronScores
from ranp.pruning.search import DELTA, bisect
from ranp.pruning.snip import select_weights
from ranp.pruning.statistics import Statistic

if TYPE_CHECKING:
    from ranp.pruning.choose import Chooser
    from ranp.pruning.methods import Method


@dataclass(frozen=True)
class Selection:
    """A rule that selects neurons at a sparsity.

    Attributes:
        name: Name of the rule.
        select: Returns the neurons that each layer retains, which are coupled afterwards, or the
            living channels themselves.
        statistics: Statistics that it needs in addition to those of the criterion.
        ranked: Whether neurons are removed in order; if not, a budget may be filled with any.
        of_weights: Whether a sparsity is the share of weights to remove, not of neurons.
    """

    name: str
    select: Callable[[Chooser, float], Retained | Alive]
    statistics: tuple[Statistic, ...] = ()
    ranked: bool = True
    of_weights: bool = False


def layerwise(s: NeuronScores, sparsity: float) -> Retained:
    """Retain the best `ceil(n_l x (1 - sparsity))` neurons of every layer; the first of equals."""
    check_sparsity(sparsity)
    retained: Retained = {}
    for name, values in s.items():
        best = np.argsort(-values, kind="stable")[: math.ceil(len(values) * (1 - sparsity))]
        retained[name] = np.zeros(len(values), bool)
        retained[name][best] = True
    return retained


def random(neurons: Mapping[str, int], sparsity: float, seed: int) -> Retained:
    """Remove `int(n x sparsity)` neurons at random over all layers.

    The generator is numpy's legacy one, as in the paper's tables.
    """
    check_sparsity(sparsity)
    n = sum(neurons.values())
    removed = np.random.RandomState(seed).choice(np.arange(n), int(n * sparsity), replace=False)
    retained = np.ones(n, bool)
    retained[removed] = False
    return split_by_layer(neurons, retained)


GLOBAL = Selection("global", lambda chooser, sparsity: top_k(chooser.importance, sparsity))
LAYERWISE = Selection(
    "layerwise", lambda chooser, sparsity: layerwise(chooser.importance, sparsity)
)
RANDOM = Selection(
    "random", lambda chooser, sparsity: random(chooser.neurons, sparsity, chooser.choice.seed)
)


def snip_np(**rule: Any) -> Selection:
    """Return the rule of SNIP NP, by the options of `ranp.pruning.snip.select_weights`."""
    return Selection(
        "weights",
        lambda chooser, sparsity: select_weights(
            chooser.graph, chooser.sensitivity, sparsity, **rule
        ),
        (ABS,),
        of_weights=True,
    )


def flat(reference: Method) -> Selection:
    """Return the rule that gives all layers one width, at the FLOPs of a reference method."""

    def select(chooser: Chooser, sparsity: float) -> Alive:
        plain = chooser.with_settings(
            method=reference, resource=None, coupling="paper", floor=0, multiple=1
        )
        budget = chooser.costs(plain.choose(sparsity)).gflops
        equal = {name: np.zeros(len(layer)) for name, layer in chooser.graph.layers.items()}

        def narrow(share: float) -> Alive:
            return couple(chooser.graph, layerwise(equal, share), chooser.channel_groups)

        share = bisect(lambda share: chooser.costs(narrow(share)).gflops > budget) + DELTA
        return narrow(min(share, 1 - DELTA))

    criterion = reference.criterion
    return Selection("flat", select, () if criterion is None else criterion.statistics)
