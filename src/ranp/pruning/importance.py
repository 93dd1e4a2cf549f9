"""Eq. 6, 7 and 8: from parameter mask gradients to the importance of a neuron.

A neuron u of layer l has the parameter mask gradients g_uv = dL/dc_uv = (dL/dw_uv) w_uv. What the
six measures need of them is kept per neuron (`ranp.pruning.scores`), averaged over batches.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ranp.pruning.scores import Scores
from ranp.pruning.select import NeuronScores

Reduction = Literal["sum", "mean", "max"]


def mpmg(scores: Scores, f: Reduction = "sum") -> NeuronScores:
    """Eq. 6, magnitude of parameter mask gradients: s_u = f(|g_u1|, ..., |g_uN|).

    The magnitude is taken in every batch, then averaged.
    """
    if f == "max":
        return _largest(scores, "abs")
    return _sum_or_mean(scores, "mpmg", f)


def mnmg(scores: Scores, f: Reduction = "sum") -> NeuronScores:
    """Eq. 7, magnitude of the neuron mask gradient: s_u = |f(g_u1, ..., g_uN)|.

    With f = sum it is |dL/dc_u|, by Eq. 8 (Prop. 1). The gradient is averaged over batches before
    its magnitude is taken; the maximum is that of the magnitudes of averages.
    """
    if f == "max":
        return _largest(scores, "signed")
    return {name: np.abs(s) for name, s in _sum_or_mean(scores, "mnmg", f).items()}


def _sum_or_mean(scores: Scores, statistic: str, f: Reduction) -> NeuronScores:
    s = scores.average(statistic)
    return s if f == "sum" else {name: v / scores.fan_in[name] for name, v in s.items()}


def _largest(scores: Scores, statistic: str) -> NeuronScores:
    averages = scores.weight_averages(statistic)
    return {name: rows.abs().amax(1).double().numpy() for name, rows in averages.items()}
