"""Eq. 10: neurons of cheap layers count more."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ranp.errors import UsageError
from ranp.pruning.select import NeuronScores


def reweight(s: NeuronScores, tau: Mapping[str, float], lam: float) -> NeuronScores:
    """Eq. 10: s^_u = (1 + lambda softmax(-tau_l / max tau)) s~_u, the softmax over layers.

    The paper prints softmax(-tau); over raw FLOPs that is one-hot. Its figures come from costs
    divided by the largest.

    Args:
        s: Balanced importance, Eq. 9.
        tau: What each layer costs.
        lam: How much cost matters; 0 leaves scores alone.
    """
    missing = [name for name in s if name not in tau]
    if missing:
        raise UsageError(f"the resource vector has no cost for layer '{missing[0]}'")
    check_lambda(lam)
    costs = np.array([tau[name] for name in s], np.float64)
    for name, cost in zip(s, costs, strict=True):
        if not 0 <= cost < np.inf:
            raise UsageError(f"layer '{name}' costs {cost}: costs are finite and not negative")
    relative = costs / costs.max() if costs.max() > 0 else costs
    softmax = np.exp(-relative) / np.exp(-relative).sum()
    return {name: (1 + lam * w) * s[name] for name, w in zip(s, softmax, strict=True)}


def check_lambda(lam: float) -> None:
    """Refuses what cannot weigh costs."""
    if not 0 <= lam < np.inf:
        raise UsageError(f"lambda is {lam}: it must be finite and not negative")
