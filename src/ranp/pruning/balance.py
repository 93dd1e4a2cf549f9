"""Eq. 9: the same mean importance in every layer."""

from __future__ import annotations

import numpy as np

from ranp.pruning.select import NeuronScores


def balance(s: NeuronScores) -> NeuronScores:
    """Eq. 9: s~_u = (max_k mean(s^k) / mean(s^l)) s_u.

    A layer whose scores are all zero has nothing to balance and stays as it is.
    """
    means = {name: float(np.mean(values)) for name, values in s.items()}
    top = max(means.values())
    return {
        name: values * (top / means[name]) if means[name] > 0 else values
        for name, values in s.items()
    }
