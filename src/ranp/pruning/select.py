"""Eq. 11: which neurons are retained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranp.errors import UsageError

NeuronScores = Mapping[str, NDArray[np.float64]]
"""One number per neuron, by layer name, in the order of the channel graph's layers."""

Retained = dict[str, NDArray[np.bool_]]
"""Which neurons of each layer are retained."""


def top_k(s: NeuronScores, sparsity: float) -> Retained:
    """Eq. 11: c_u = 1[s_u - s_k >= 0], over the neurons of all layers at once.

    k is `int(n x (1 - sparsity))`. Neurons that tie with the k-th are retained. Those that tie at
    zero have nothing to be retained for: of them only as many are as k asks for, the first ones.

    Args:
        s: Importance of every neuron.
        sparsity: The share of neurons to remove.
    """
    check_sparsity(sparsity)
    retained = largest(np.concatenate(list(s.values())), sparsity)
    return _by_layer({name: len(values) for name, values in s.items()}, retained)


def largest(s: NDArray[np.floating[Any]], sparsity: float) -> NDArray[np.bool_]:
    """Which of some scores are retained at a sparsity, by the rules of Eq. 11 (see `top_k`)."""
    k = int(len(s) * (1 - sparsity))
    if k == 0:
        return np.zeros(len(s), bool)
    s_k = np.partition(s, len(s) - k)[len(s) - k]
    retained: NDArray[np.bool_] = s >= s_k
    if s_k == 0:
        retained[np.flatnonzero(s == 0)[k - int((s > 0).sum()) :]] = False
    return retained


def layerwise(s: NeuronScores, sparsity: float) -> Retained:
    """The best `ceil(n_l x (1 - sparsity))` neurons of every layer; of equals, the first ones."""
    check_sparsity(sparsity)
    retained: Retained = {}
    for name, values in s.items():
        best = np.argsort(-values, kind="stable")[: math.ceil(len(values) * (1 - sparsity))]
        retained[name] = np.zeros(len(values), bool)
        retained[name][best] = True
    return retained


def random(neurons: Mapping[str, int], sparsity: float, seed: int) -> Retained:
    """Removes `int(n x sparsity)` neurons at random over all layers.

    The generator is numpy's legacy one, as in the paper's tables.

    Args:
        neurons: The number of neurons of each layer.
        sparsity: The share of neurons to remove.
        seed: Of the generator; the paper's rows have 0.
    """
    check_sparsity(sparsity)
    n = sum(neurons.values())
    removed = np.random.RandomState(seed).choice(np.arange(n), int(n * sparsity), replace=False)
    retained = np.ones(n, bool)
    retained[removed] = False
    return _by_layer(neurons, retained)


def _by_layer(neurons: Mapping[str, int], retained: NDArray[np.bool_]) -> Retained:
    ends = np.cumsum(list(neurons.values()))[:-1]
    return dict(zip(neurons, np.split(retained, ends), strict=True))


def check_sparsity(sparsity: Any) -> None:
    """Refuses anything that is not a share."""
    if not isinstance(sparsity, (int, float, np.floating)) or not 0 <= sparsity <= 1:
        raise UsageError(f"sparsity {sparsity!r} is no number between 0 and 1: a share of neurons")


def floor_sparsity(sparsity: float) -> str:
    """A largest sparsity for people: rounded up, it would not be feasible."""
    return f"{math.floor(1e4 * sparsity) / 1e4:.4f}"
