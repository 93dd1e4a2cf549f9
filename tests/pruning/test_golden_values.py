"""Networks small enough to be worked out on paper; every number below was.

Two layers: W_a = (1 -1; 2 0.5; -1 1), W_b = (1 -2 3; 0.5 1 -1), a ReLU between them, and the loss
L = t (2 y_0 - y_1), so dL/dy = t (2, -1) and dL/da = t W_b' (2, -1) = t (1.5, -5, 7).

Batch 1, x = (1, 2), t = 1: h = (-1, 3, 1), a = (0, 3, 1), delta = (0, -5, 7),
    g_a = delta_u w_uv x_v = (0 0; -10 -5; -7 14),
    g_b = (2 (0 -6 3); -1 (0 3 -1)) = (0 -12 6; 0 -3 1).
Batch 2, x = (2, -1), t = -1: h = (3, 3.5, -3), a = (3, 3.5, 0), delta = (-1.5, 5, 0),
    g_a = (-3 -1.5; 20 -2.5; 0 0),
    g_b = (-2 (3 -7 0); (1.5 3.5 0)) = (-6 14 0; 1.5 3.5 0).

Averages of |g|:  a = (1.5 0.75; 15 3.75; 3.5 7),     b = (3 13 3; 0.75 3.25 0.5).
Averages of g:    a = (-1.5 -0.75; 5 -3.75; -3.5 7),  b = (-3 1 3; 0.75 0.25 0.5).

Three layers: w_a = (1; -1), W_b = (1 2; 3 -1), W_c = (1 1; 1 2; 0 -1), ReLU between, x = (1, 2)
along one axis, L = the sum of outputs. a = (1 2; 0 0), b = (1 2; 3 6), sums (3; 0) and (3; 9).
    g_c = (3 9; 3 18; 0 -9); dL/db = (2, 2), so g_b = 2 (1 x 3, 0; 3 x 3, 0) = (6 0; 18 0);
    dL/da = (2 + 6, 4 - 2) = (8, 2), of which ReLU lets pass the first, so g_a = (24; 0).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ranp
from ranp.errors import InfeasibleError
from ranp.pruning import Choice, Chooser, Scores
from ranp.pruning.equations import balance, mnmg, mpmg, reweight
from tests.pruning.nets import given_scores, score, three_layers, traced, two_layers


def signed_difference(model, batch):
    x, t = batch
    y = model(x)
    return (t * (2 * y[:, 0] - y[:, 1])).sum()


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


TWO_BATCHES = [(doubles([1, 2]), doubles(1)), (doubles([2, -1]), doubles(-1))]


@pytest.fixture(scope="module")
def two() -> Scores:
    return given_scores(two_layers(), TWO_BATCHES, signed_difference, "abs", "signed")


@pytest.mark.parametrize(
    ("measure", "reduction", "a", "b"),
    [
        (mpmg, "sum", [2.25, 18.75, 10.5], [19, 4.5]),
        (mpmg, "mean", [1.125, 9.375, 5.25], [19 / 3, 1.5]),
        (mpmg, "max", [1.5, 15, 7], [13, 3.25]),
        (mnmg, "sum", [2.25, 1.25, 3.5], [1, 1.5]),
        (mnmg, "mean", [1.125, 0.625, 1.75], [1 / 3, 0.5]),
        (mnmg, "max", [0.75, 5, 7], [3, 0.75]),  # of (-1.5 -0.75) the largest is -0.75
    ],
)
def test_importance_of_two_layers(two, measure, reduction, a, b):
    s = measure(two, reduction)
    np.testing.assert_allclose(s["a"], a, rtol=1e-14)
    np.testing.assert_allclose(s["b"], b, rtol=1e-14)


def test_methods_use_the_measure_they_are_named_after(two):
    model = two_layers()
    graph = traced(model, 1, 2)
    expected = {
        "vanilla": 18.75,
        "mpmg-mean": 9.375,
        "mpmg-max": 15,
        "mnmg-sum": 1.25,
        "mnmg-mean": 0.625,
        "mnmg-max": 5,
    }
    for name, value in expected.items():
        s = Chooser(model, graph, Choice.make(name), two).importance
        assert s["a"][1] == pytest.approx(value, rel=1e-14), name


def test_balance_gives_every_layer_the_largest_mean(two):
    # Means 31.5 / 3 = 10.5 and 23.5 / 2 = 11.75.
    s = balance(mpmg(two))
    np.testing.assert_allclose(s["a"], np.array([2.25, 18.75, 10.5]) * 11.75 / 10.5, rtol=1e-14)
    np.testing.assert_allclose(s["b"], [19, 4.5], rtol=1e-14)
    assert s["a"].mean() == pytest.approx(s["b"].mean(), rel=1e-14)


def test_balance_leaves_a_layer_without_scores_alone():
    s = balance({"a": np.array([1.0, 3.0]), "b": np.zeros(2)})
    np.testing.assert_array_equal(s["a"], [1, 3])
    np.testing.assert_array_equal(s["b"], [0, 0])


def test_reweighting_by_relative_cost():
    # tau / max = (0.5, 1); e^-0.5 = 0.606530659713, e^-1 = 0.367879441171.
    s = reweight({"a": np.array([1.0]), "b": np.array([1.0])}, {"a": 2, "b": 4}, lam=10)
    assert s["a"][0] == pytest.approx(1 + 10 * 0.606530659713 / 0.974410100884, rel=1e-11)
    assert s["b"][0] == pytest.approx(1 + 10 * 0.367879441171 / 0.974410100884, rel=1e-11)


def test_mask_of_two_layers(two):
    # Reweighted with tau = (2, 4), lambda = 10: a = 18.19, 151.59, 84.89; b = 90.73, 21.49.
    model = two_layers()
    graph = traced(model, 1, 2)
    chooser = Chooser(
        model, graph, Choice.make("weighted", lam=10, resource={"a": 2.0, "b": 4.0}), two
    )
    np.testing.assert_allclose(chooser.importance["a"], [18.1906, 151.588, 84.889], rtol=1e-4)
    np.testing.assert_allclose(chooser.importance["b"], [90.7327, 21.4893], rtol=1e-4)
    # k = 3 retains a_1, b_0, a_2; k = 2 the first two. The last layer stays whole all the same.
    assert kept(graph, chooser, 0.4) == {"a": [1, 2], "b": [0, 1]}
    assert kept(graph, chooser, 0.6) == {"a": [1], "b": [0, 1]}


def kept(graph, chooser, sparsity):
    return {name: k.tolist() for name, k in graph.kept(chooser.choose_feasible(sparsity)).items()}


@pytest.fixture(scope="module")
def three():
    model = three_layers()
    graph = traced(model, 1, 1, 2)
    batch = torch.tensor([[[1.0, 2.0]]], dtype=torch.float64)
    scores = score(model, graph, [batch], lambda m, x: m(x).sum(), weights="given")
    return model, graph, scores


def test_three_layers_through_importance_and_balance(three):
    _, _, scores = three
    s = mpmg(scores)
    np.testing.assert_allclose(s["a"], [24, 0])
    np.testing.assert_allclose(s["b"], [6, 18])
    np.testing.assert_allclose(s["c"], [12, 21, 9])
    # Means 12, 12 and 14.
    s = balance(s)
    np.testing.assert_allclose(s["a"], [28, 0])
    np.testing.assert_allclose(s["b"], [7, 21])
    np.testing.assert_allclose(s["c"], [12, 21, 9])


def test_three_layers_reweighted_by_flops_memory_and_parameters(three):
    # FLOPs 4 x 1, 4 x 2, 6 x 2 = 4, 8, 12; outputs 4, 4, 6; weights 2, 4, 6.
    third, two_thirds, one = np.exp(-1 / 3), np.exp(-2 / 3), np.exp(-1)
    softmaxes = {
        "flops": np.array([third, two_thirds, one]) / (third + two_thirds + one),
        "memory": np.array([two_thirds, two_thirds, one]) / (2 * two_thirds + one),
        "params": np.array([third, two_thirds, one]) / (third + two_thirds + one),
    }
    model, graph, scores = three
    for resource, (a, b, c) in softmaxes.items():
        s = Chooser(
            model, graph, Choice.make("weighted", lam=11, resource=resource), scores
        ).importance
        np.testing.assert_allclose(s["a"], np.array([28, 0]) * (1 + 11 * a), rtol=1e-14)
        np.testing.assert_allclose(s["b"], np.array([7, 21]) * (1 + 11 * b), rtol=1e-14)
        np.testing.assert_allclose(s["c"], np.array([12, 21, 9]) * (1 + 11 * c), rtol=1e-14)


def test_ranp_f_and_ranp_m_name_their_resource(three):
    model, graph, scores = three
    for method, resource in (("ranp-f", "flops"), ("ranp-m", "memory")):
        own = Chooser(model, graph, Choice.make(method), scores).importance
        named = Chooser(model, graph, Choice.make("weighted", resource=resource), scores).importance
        for name in own:
            np.testing.assert_array_equal(own[name], named[name])


def test_masks_of_three_layers_until_one_is_empty(three):
    model, graph, scores = three
    chooser = Chooser(model, graph, Choice.make("ranp-f", lam=11), scores)
    np.testing.assert_allclose(chooser.importance["a"], [166.1198, 0], atol=1e-3)
    np.testing.assert_allclose(chooser.importance["b"], [31.7418, 95.2254], atol=1e-3)
    np.testing.assert_allclose(chooser.importance["c"], [42.3913, 74.1848, 31.7935], atol=1e-3)
    # So the order is a_0, b_1, c_1, c_0, c_2, b_0, a_1.
    whole = [0, 1, 2]
    assert kept(graph, chooser, 0.0) == {"a": [0, 1], "b": [0, 1], "c": whole}
    assert kept(graph, chooser, 0.1) == {"a": [0], "b": [0, 1], "c": whole}
    assert kept(graph, chooser, 0.2) == {"a": [0], "b": [1], "c": whole}
    assert kept(graph, chooser, 0.7) == {"a": [0], "b": [1], "c": whole}
    # Above 5/7 there is k = 1, and only a_0 is left.
    with pytest.raises(InfeasibleError, match=r"leaves no neuron in layer 'b'; .* is 0\.714") as e:
        chooser.choose_feasible(0.8)
    assert e.value.exit_code == 3
    assert chooser.max_sparsity() == pytest.approx(5 / 7, abs=1e-4)


def test_feasibility_by_each_layers_own_mask():
    # Magnitudes: a = (4, 3), a depthwise layer d = (1, 0.5), the head (2, 2), which stays whole.
    # Ranked 4 3 2 2 1 0.5, of which int(6 (1 - sparsity)) are retained: d has one of its own while
    # five are, up to 1/6; its channels are a's, which has one while one is, up to 5/6.
    model = torch.nn.Sequential(
        torch.nn.Conv3d(1, 2, 1, bias=False),
        torch.nn.Conv3d(2, 2, 1, groups=2, bias=False),
        torch.nn.Conv3d(2, 2, 1, bias=False),
    )
    for layer, weights in zip(model, ([4.0, -3.0], [1.0, 0.5], [1.0, 1.0, -1.0, 1.0]), strict=True):
        layer.weight.data = torch.tensor(weights).view_as(layer.weight)
    graph = traced(model, 1, 1, 2, 2, 2)
    scores = ranp.score(model, methods="magnitude", weights="given", graph=graph)
    chooser = Chooser(model, graph, Choice.make("magnitude"), scores)
    assert 1 / 6 - 1e-4 <= chooser.max_sparsity("paper") <= 1 / 6
    assert 5 / 6 - 1e-4 <= chooser.max_sparsity("coupled") <= 5 / 6
    assert ranp.search(model, scores, method="magnitude", graph=graph) <= 1 / 6
    coupled = ranp.search(model, scores, method="magnitude", graph=graph, rule="coupled")
    assert coupled == chooser.max_sparsity("coupled")
    assert ranp.plan(model, scores, sparsity=0.8, method="magnitude", graph=graph).layers["1"].kept
    with pytest.raises(ranp.UsageError, match="rule must be one of 'paper', 'coupled', got 'own'"):
        chooser.max_sparsity("own")
