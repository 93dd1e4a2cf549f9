"""The paper's equations 2 and 6 to 11, one function each, in its symbols.

A neuron u of layer l has weights w_uv and parameter mask gradients g_uv. `MPMG` and `MNMG` are the
statistics of them that scoring sums over batches; `mpmg` and `mnmg` turn their averages into
importance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ranp.errors import UsageError
from ranp.pruning.scores import NeuronScores, Scores
from ranp.pruning.statistics import PerGradient

Reduction = Literal["sum", "mean", "max"]
Retained = dict[str, NDArray[np.bool_]]
"""Which neurons of each layer are retained."""

MPMG = PerGradient("mpmg", lambda g: g.sum(1), magnitude=True)  # sum_v |g_uv|
MNMG = PerGradient("mnmg", lambda g: g.sum(1))  # sum_v g_uv
ABS = PerGradient("abs", lambda g: g, magnitude=True, per_weight=True)  # |g_uv|
SIGNED = PerGradient("signed", lambda g: g, per_weight=True)  # g_uv


def mask_gradient_(dw: Tensor, w: Tensor) -> Tensor:
    """Eq. 2: g_uv = dL(c w)/dc_uv at c = 1, which is (dL/dw_uv) w_uv. Overwrites `dw` with it."""
    return dw.mul_(w)


def mpmg(scores: Scores, f: Reduction = "sum") -> NeuronScores:
    """Eq. 6, magnitude of parameter mask gradients: s_u = f(|g_u1|, ..., |g_uN|).

    The magnitude is taken in every batch, then averaged.
    """
    return _max(scores, "abs") if f == "max" else _sum_or_mean(scores, "mpmg", f)


def mnmg(scores: Scores, f: Reduction = "sum") -> NeuronScores:
    """Eq. 7, magnitude of the neuron mask gradient: s_u = |f(g_u1, ..., g_uN)|.

    With f = sum it is |dL/dc_u|, by Eq. 8 (Prop. 1). The gradient is averaged over batches before
    its magnitude is taken. With f = max it is |max_v g_uv|, the magnitude of the largest signed
    average: Appendix D relaxes the sum of Eq. 8.
    """
    s = _max(scores, "signed") if f == "max" else _sum_or_mean(scores, "mnmg", f)
    return {name: np.abs(values) for name, values in s.items()}


def _sum_or_mean(scores: Scores, statistic: str, f: Reduction) -> NeuronScores:
    s = scores.average(statistic)
    return s if f == "sum" else {name: v / scores.fan_in[name] for name, v in s.items()}


def _max(scores: Scores, statistic: str) -> NeuronScores:
    averages = scores.weight_averages(statistic)
    return {name: rows.amax(1).double().numpy() for name, rows in averages.items()}


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


def reweight(s: NeuronScores, tau: Mapping[str, float], lam: float) -> NeuronScores:
    """Eq. 10: s^_u = (1 + lambda softmax(-tau_l / max tau)) s~_u, the softmax over layers.

    The paper prints softmax(-tau); over raw FLOPs that is one-hot. Its figures come from costs
    divided by the largest.

    Args:
        s: Balanced importance, Eq. 9.
        tau: Cost of each layer.
        lam: Weight of the costs; 0 leaves the scores unchanged.
    """
    check_costs(tau, s)
    check_lambda(lam)
    costs = np.array([tau[name] for name in s], np.float64)
    relative = costs / costs.max() if costs.max() > 0 else costs
    softmax = np.exp(-relative) / np.exp(-relative).sum()
    return {name: (1 + lam * w) * s[name] for name, w in zip(s, softmax, strict=True)}


def top_k(s: NeuronScores, sparsity: float) -> Retained:
    """Eq. 11: c_u = 1[s_u - s_k >= 0], over the neurons of all layers at once.

    k is `int(n x (1 - sparsity))`. Neurons that tie with the k-th are retained. Those that tie at
    zero have nothing to be retained for: of them only as many are as k asks for, the first ones.
    """
    retained = top_k_mask(np.concatenate(list(s.values())), sparsity)
    return split_by_layer({name: len(values) for name, values in s.items()}, retained)


def top_k_mask(s: NDArray[np.floating[Any]], sparsity: float) -> NDArray[np.bool_]:
    """Return the mask of the retained among flat scores, by the rules of Eq. 11 (see `top_k`)."""
    check_sparsity(sparsity)
    k = int(len(s) * (1 - sparsity))
    if k == 0:
        return np.zeros(len(s), bool)
    s_k = np.partition(s, len(s) - k)[len(s) - k]
    retained: NDArray[np.bool_] = s >= s_k
    if s_k == 0:
        retained[np.flatnonzero(s == 0)[k - int((s > 0).sum()) :]] = False
    return retained


def split_by_layer(neurons: Mapping[str, int], retained: NDArray[np.bool_]) -> Retained:
    """Cut a mask over all neurons into one mask per layer."""
    ends = np.cumsum(list(neurons.values()))[:-1]
    return dict(zip(neurons, np.split(retained, ends), strict=True))


def check_sparsity(sparsity: Any) -> None:
    """Refuse a sparsity that is not a number between 0 and 1."""
    if not isinstance(sparsity, (int, float, np.floating)) or not 0 <= sparsity <= 1:
        raise UsageError(f"sparsity must be between 0 and 1, got {sparsity!r}")


def check_lambda(lam: float) -> None:
    """Refuse a lambda of Eq. 10 that is negative or not finite."""
    if not isinstance(lam, int | float | np.number) or not 0 <= lam < np.inf:
        raise UsageError(f"lambda must be finite and not negative, got {lam!r}")


def check_costs(tau: Mapping[str, float], layers: Iterable[str]) -> None:
    """Refuse a tau of Eq. 10 that lacks a layer, or has a cost that is negative or not finite."""
    for name in layers:
        if name not in tau:
            raise UsageError(f"the resource vector has no cost for layer '{name}'")
        if not 0 <= tau[name] < np.inf:
            raise UsageError(
                f"cost of layer '{name}' must be finite and not negative, got {tau[name]}"
            )
