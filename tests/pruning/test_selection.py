"""Eq. 11 and its relatives: counts, ties, order, monotony."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranp.errors import UsageError
from ranp.pruning.equations import reweight, top_k
from ranp.pruning.search import floor_sparsity
from ranp.pruning.selection import layerwise, random

SHARES = st.floats(0, 1)
WIDTHS = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def distinct_scores(widths, seed):
    """Positive numbers without ties."""
    n = sum(widths)
    values = np.random.default_rng(seed).permutation(n) + 1.0
    ends = np.cumsum(widths)[:-1]
    return {f"layer{i}": part for i, part in enumerate(np.split(values, ends))}


def count(retained):
    return sum(int(r.sum()) for r in retained.values())


@given(widths=WIDTHS, seed=st.integers(0, 99), sparsity=SHARES)
def test_top_k_retains_exactly_k_and_the_largest(widths, seed, sparsity):
    s = distinct_scores(widths, seed)
    retained = top_k(s, sparsity)
    k = int(sum(widths) * (1 - sparsity))
    assert count(retained) == k
    everything = np.sort(np.concatenate(list(s.values())))[::-1]
    chosen = np.concatenate([s[name][r] for name, r in retained.items()])
    assert sorted(chosen, reverse=True) == everything[:k].tolist()


@given(widths=WIDTHS, seed=st.integers(0, 99), a=SHARES, b=SHARES)
def test_a_larger_sparsity_retains_a_subset(widths, seed, a, b):
    s = distinct_scores(widths, seed)
    neurons = {name: len(v) for name, v in s.items()}
    low, high = sorted((a, b))
    for select in (top_k, layerwise, lambda s, x: random(neurons, x, seed)):
        more, fewer = select(s, low), select(s, high)
        assert all((more[name] | ~fewer[name]).all() for name in s)


def test_ties_with_the_last_are_retained():
    s = {"a": np.array([5.0, 2.0, 2.0]), "b": np.array([2.0, 1.0])}
    retained = top_k(s, 0.6)  # k = 2, and the second largest is 2
    assert retained["a"].tolist() == [True, True, True]
    assert retained["b"].tolist() == [True, False]


def test_ties_at_zero_are_retained_no_more_than_k_asks_for():
    s = {"a": np.array([0.0, 3.0]), "b": np.zeros(3)}
    assert count(top_k(s, 0.4)) == 3
    assert top_k(s, 0.4)["a"].tolist() == [True, True]
    assert top_k(s, 0.4)["b"].tolist() == [True, False, False]
    assert count(top_k(s, 0.0)) == 5


@given(widths=WIDTHS, seed=st.integers(0, 99), sparsity=SHARES)
def test_layerwise_retains_the_best_of_every_layer(widths, seed, sparsity):
    s = distinct_scores(widths, seed)
    for name, retained in layerwise(s, sparsity).items():
        k = math.ceil(len(s[name]) * (1 - sparsity))
        assert retained.sum() == k
        assert sorted(s[name][retained]) == sorted(s[name])[len(s[name]) - k :]


def test_random_is_numpys_legacy_choice():
    neurons = {"a": 7, "b": 5, "c": 8}
    np.random.seed(0)
    removed = np.random.choice(np.arange(20), int(20 * 0.65), replace=False)
    retained = random(neurons, 0.65, seed=0)
    assert np.flatnonzero(~np.concatenate(list(retained.values()))).tolist() == sorted(removed)
    assert [len(r) for r in retained.values()] == [7, 5, 8]
    assert sum(map(sum, random({"a": 10}, 0.33, seed=0).values())) == 10 - int(10 * 0.33)
    other = random(neurons, 0.65, seed=1)
    assert any((other[name] != retained[name]).any() for name in neurons)


@given(widths=WIDTHS, seed=st.integers(0, 99))
def test_no_lambda_and_equal_costs_leave_the_order_unchanged(widths, seed):
    s = distinct_scores(widths, seed)
    costs = dict(zip(s, np.random.default_rng(seed).random(len(s)) * 1e9, strict=True))
    without = reweight(s, costs, lam=0)
    equal = reweight(s, dict.fromkeys(s, 3e8), lam=11)
    for name in s:
        np.testing.assert_array_equal(without[name], s[name])
        np.testing.assert_allclose(equal[name], s[name] * (1 + 11 / len(s)), rtol=1e-14)


@given(costs=st.lists(st.floats(0, 1e12), min_size=2, max_size=8), lam=st.floats(0, 1e4))
def test_factors_of_two_layers_differ_by_at_most_e(costs, lam):
    names = [str(i) for i in range(len(costs))]
    one = {name: np.ones(1) for name in names}
    factors = [v[0] for v in reweight(one, dict(zip(names, costs, strict=True)), lam).values()]
    assert max(factors) / min(factors) <= math.e * (1 + 1e-12)
    assert [f for _, f in sorted(zip(costs, factors, strict=True))] == sorted(factors, reverse=True)


@pytest.mark.parametrize("sparsity", [-0.1, 1.2, float("nan"), "0.5"])
def test_a_sparsity_that_is_no_share_is_refused(sparsity):
    s = {"a": np.ones(3)}
    for select in (top_k, layerwise, lambda s, x: random({"a": 3}, x, 0)):
        with pytest.raises(UsageError, match="must be between 0 and 1, got"):
            select(s, sparsity)


@pytest.mark.parametrize(
    ("costs", "lam", "message"),
    [
        ({"a": 1.0}, -1.0, "finite and not negative"),
        ({"a": 1.0}, float("nan"), "finite and not negative"),
        ({"b": 1.0}, 1.0, "no cost for layer 'a'"),
        ({"a": -1.0}, 1.0, "cost of layer 'a' must be finite and not negative, got -1.0"),
        ({"a": float("inf")}, 1.0, "cost of layer 'a' must be finite and not negative, got inf"),
    ],
)
def test_costs_and_lambdas_that_make_no_sense_are_refused(costs, lam, message):
    with pytest.raises(UsageError, match=message):
        reweight({"a": np.ones(2)}, costs, lam)


def test_of_equal_neurons_the_first_ones_are_retained():
    assert np.flatnonzero(layerwise({"a": np.zeros(40)}, 0.5)["a"]).tolist() == list(range(20))


@given(st.floats(0, 1))
def test_a_largest_sparsity_is_never_rounded_up(sparsity):
    assert 0 <= sparsity - float(floor_sparsity(sparsity)) < 1e-4 + 1e-12
