"""From scores to living channels: coupling, floors, multiples, feasibility, Algorithm 2."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ranp.errors import InfeasibleError, IntegrityError, UsageError
from ranp.pruning import Choice, Chooser, Scores, find_method, fingerprint
from ranp.pruning.search import DELTA
from ranp.resources import count
from tests.pruning.nets import classifier, cross_entropy, given_scores, pictures, traced
from tests.zoo.case import Net


def residual():
    """conv a and conv b are added; c is depthwise on the sum; d reads it."""
    torch.manual_seed(0)
    return Net(
        lambda net, x: net.d(net.c(F.relu(net.a(x) + net.b(x)))),
        a=nn.Conv2d(2, 4, 1),
        b=nn.Conv2d(2, 4, 1),
        c=nn.Conv2d(4, 4, 3, padding=1, groups=4),
        d=nn.Conv2d(4, 3, 1),
    ).double()


def with_scores(model, shape, values):
    """A chooser's arguments, with neuron scores as given and no data behind them."""
    graph = traced(model, *shape)
    sums = {name: torch.tensor(v, dtype=torch.float64) for name, v in values.items()}
    return (
        model,
        graph,
        Scores(
            batches=1,
            fan_in=dict.fromkeys(values, 1),
            sums={"mpmg": sums, "mnmg": sums},
            settings={},
            fingerprint=fingerprint(graph),
        ),
    )


RESIDUAL = {
    "a": [9.0, 1, 1, 8],
    "b": [2.0, 7, 6, 5],
    "c": [1.0, 20, 1, 1],
    "d": [3.0, 3, 3],
}


def kept(graph, alive):
    return {name: k.tolist() for name, k in graph.kept(alive).items()}


@cache
def residual_with_scores():
    return with_scores(residual(), (1, 2, 5, 5), RESIDUAL)


def chooser_of(method="vanilla", **options):
    model, graph, scores = residual_with_scores()
    return graph, Chooser(model, graph, Choice.make(method, **options), scores)


def test_of_added_layers_the_one_that_retains_most_decides():
    # n = 15; k = 6 retains c_1, a_0, a_3, b_1, b_2, b_3: b with three beats a with two, and c,
    # which is depthwise, has no say.
    graph, chooser = chooser_of()
    alive = chooser.choose(0.6)
    assert kept(graph, alive) == {"a": [1, 2, 3], "b": [1, 2, 3], "c": [1, 2, 3], "d": [0, 1, 2]}


@pytest.mark.parametrize(
    ("coupling", "order"),
    [
        # class scores over a, b, c:  sum 12 28 8 14,  max 9 20 6 8,  mean 4 9.33 2.67 4.67
        ("sum", [1, 3, 0, 2]),
        ("max", [1, 0, 3, 2]),
        ("mean", [1, 3, 0, 2]),
    ],
)
def test_coupled_scores_rank_whole_classes(coupling, order):
    graph, chooser = chooser_of(coupling=coupling)
    s = chooser.importance
    np.testing.assert_array_equal(s["a"], s["b"])
    np.testing.assert_array_equal(s["a"], s["c"])
    assert np.argsort(-s["a"]).tolist() == order
    expected = {"sum": [12, 28, 8, 14], "max": [9, 20, 6, 8], "mean": [4, 28 / 3, 8 / 3, 14 / 3]}
    np.testing.assert_allclose(s["a"], expected[coupling])
    # k = int(15 x 0.41) = 6 slots are two classes of three.
    alive = chooser.choose(0.59)
    assert kept(graph, alive)["a"] == sorted(order[:2])
    assert kept(graph, alive)["c"] == sorted(order[:2])


def test_a_floor_brings_back_the_best():
    model, graph, scores = with_scores(
        classifier(), (1, 2, 8, 8), {"0": [1.0, 3, 2, 0, 0, 0], "3": [50.0] * 12, "8": [50.0] * 3}
    )
    bare = Chooser(model, graph, Choice.make("vanilla"), scores)
    with pytest.raises(InfeasibleError, match="layer '0'"):
        bare.choose_feasible(0.5)
    for floor, expected in ((1, [1]), (2, [1, 2]), (4, [0, 1, 2, 3])):
        chooser = Chooser(model, graph, Choice.make("vanilla", floor=floor), scores)
        assert kept(graph, chooser.choose_feasible(0.5))["0"] == expected
        assert len(kept(graph, chooser.choose_feasible(1.0))["3"]) == floor


def test_multiples_round_up_with_the_best():
    model, graph, scores = with_scores(
        classifier(),
        (1, 2, 8, 8),
        {"0": [1.0, 9, 2, 8, 7, 0], "3": np.arange(12.0).tolist(), "8": [20.0] * 3},
    )
    chooser = Chooser(model, graph, Choice.make("vanilla", multiple=4), scores)
    # k = int(21 x 0.5) = 10 retains layer 8, then 11, 10, 9, 9, 8, 8, 7: 2 of layer 0, 5 of 3.
    found = kept(graph, chooser.choose(0.52))
    assert found["0"] == [1, 2, 3, 4]
    assert found["3"] == [4, 5, 6, 7, 8, 9, 10, 11]
    # 6 is no multiple of 4: the layer stays whole when more than 4 are wanted.
    assert len(kept(graph, chooser.choose(0.0))["0"]) == 6


@settings(deadline=None)
@given(sparsity=st.floats(0, 1), multiple=st.integers(1, 5), floor=st.integers(0, 3))
def test_every_selection_respects_floor_and_multiple(sparsity, multiple, floor):
    for method in ("vanilla", "layerwise", "random", "ranp-f"):
        graph, chooser = chooser_of(method, floor=floor, multiple=multiple)
        for name, k in graph.kept(chooser.choose(sparsity)).items():
            width = len(graph.layers[name])
            assert len(k) >= min(floor, width)
            assert name == "d" or len(k) % multiple == 0 or len(k) == width


@pytest.fixture(scope="module")
def scored():
    model = classifier(width=16)
    data = pictures(3)
    scores = given_scores(model, data, cross_entropy, "abs", "signed", "grasp")
    return model, traced(model, 1, 2, 8, 8), scores


GLOBAL = ["ranp-f", "ranp-m", "weighted", "vanilla", "mnmg-sum", "mpmg-max", "grasp", "snip"]


@pytest.mark.parametrize("method", GLOBAL)
def test_the_boundary_of_the_search_is_tight(scored, method):
    model, graph, scores = scored
    chooser = Chooser(model, graph, Choice.make(method), scores)
    largest = chooser.max_sparsity()
    assert 0 < largest < 1
    assert chooser.keeps_every_layer(largest)
    assert not chooser.keeps_every_layer(largest + DELTA)
    assert graph.empty_layers(chooser.choose(largest + DELTA))


@pytest.mark.parametrize("method", [*GLOBAL, "layerwise", "random", "magnitude", "flat"])
def test_counts_fall_with_sparsity(scored, method):
    model, graph, scores = scored
    chooser = Chooser(model, graph, Choice.make(method), scores)
    counts = [
        [len(k) for k in graph.kept(chooser.choose(x)).values()] for x in np.linspace(0, 1, 21)
    ]
    assert counts[0] == [16, 32, 3]
    for more, fewer in pairwise(counts):
        assert all(a >= b for a, b in zip(more, fewer, strict=True))
        assert fewer[2] == 3


def test_kept_count_is_exact_up_to_the_whole_last_layer(scored):
    model, graph, scores = scored
    chooser = Chooser(model, graph, Choice.make("ranp-f"), scores)
    for sparsity in np.linspace(0.01, 0.8, 40):
        k = int(graph.neurons * (1 - sparsity))
        s = chooser.importance
        order = np.concatenate([np.full(len(v), name) for name, v in s.items()])
        best = np.argsort(-np.concatenate(list(s.values())))[:k]
        expected = {name: int((order[best] == name).sum()) for name in s} | {"8": 3}
        found = {name: len(v) for name, v in graph.kept(chooser.choose(sparsity)).items()}
        assert found == expected


def test_no_lambda_equals_weighted(scored):
    model, graph, scores = scored
    weighted = Chooser(model, graph, Choice.make("weighted"), scores)
    for method in ("ranp-f", "ranp-m"):
        ranp = Chooser(model, graph, Choice.make(method, lam=0), scores)
        for sparsity in (0.2, 0.5, 0.7):
            np.testing.assert_array_equal(ranp.choose(sparsity), weighted.choose(sparsity))


def test_equal_costs_change_nothing(scored):
    model, graph, scores = scored
    costs = dict.fromkeys(graph.layers, 7.0)
    equal = Chooser(model, graph, Choice.make("weighted", resource=costs), scores)
    weighted = Chooser(model, graph, Choice.make("weighted"), scores)
    for sparsity in (0.2, 0.5, 0.7):
        np.testing.assert_array_equal(equal.choose(sparsity), weighted.choose(sparsity))


@pytest.mark.parametrize("lam", [0.0, 11.0, 50.0])
def test_flat_is_the_widest_uniform_network_within_the_flops_of_ranp(scored, lam):
    model, graph, scores = scored
    flat = Chooser(model, graph, Choice.make("flat", lam=lam), scores)
    ranp = Chooser(model, graph, Choice.make("ranp-f", lam=lam), scores)
    for sparsity in (0.3, 0.6):
        budget = count(model, graph, ranp.choose(sparsity)).gflops
        alive = flat.choose(sparsity)
        widths = [len(k) for k in graph.kept(alive).values()]
        assert count(model, graph, alive).gflops <= budget
        assert widths[0] / 16 == pytest.approx(widths[1] / 32, abs=1 / 16)
        # One more channel in each hidden layer would be too much.
        wider = alive.copy()
        for name in ("0", "3"):
            neurons = graph.layers[name].neurons
            wider[neurons[np.flatnonzero(~alive[neurons])[:1]]] = True
        assert count(model, graph, wider).gflops > budget


def test_layers_without_scores_are_named_with_the_reason():
    model, graph, scores = with_scores(
        classifier(), (1, 2, 8, 8), {"0": [0.0] * 6, "3": [1.0] * 12, "8": [1.0] * 3}
    )
    chooser = Chooser(model, graph, Choice.make("ranp-f"), scores)
    with pytest.raises(
        InfeasibleError,
        match=r"layer '0' \(all its scores are zero\).* feasible sparsity is 0\.\d{4}",
    ) as e:
        chooser.choose_feasible(0.5)
    assert e.value.exit_code == 3
    # 16 of 21 neurons can be kept with one of layer 0 among them: at most 5 removed.
    assert chooser.max_sparsity() == pytest.approx(5 / 21, abs=DELTA)


def test_the_largest_sparsity_that_an_error_names_is_feasible():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        s = {name: rng.exponential(size=n).tolist() for name, n in (("0", 6), ("3", 12), ("8", 3))}
        model, graph, scores = with_scores(classifier(), (1, 2, 8, 8), s)
        chooser = Chooser(model, graph, Choice.make("vanilla"), scores)
        with pytest.raises(InfeasibleError) as error:
            chooser.choose_feasible(0.99)
        named = re.search(r"feasible sparsity is (0\.\d{4})", str(error.value))
        assert chooser.keeps_every_layer(float(named[1]))


@pytest.mark.parametrize("method", ["random", "layerwise"])
def test_methods_without_scores_do_not_blame_them(method):
    model = classifier()
    chooser = Chooser(model, traced(model, 1, 2, 8, 8), Choice.make(method))
    with pytest.raises(InfeasibleError, match=r"leaves no neuron in layer '0'( and|;)"):
        chooser.choose_feasible(1.0)


def test_a_dead_network_is_refused_unless_there_is_a_floor():
    zeros = {"0": [0.0] * 6, "3": [0.0] * 12, "8": [0.0] * 3}
    model, graph, scores = with_scores(classifier(), (1, 2, 8, 8), zeros)
    for method in ("ranp-f", "vanilla"):
        with pytest.raises(InfeasibleError, match="all its scores are zero"):
            Chooser(model, graph, Choice.make(method), scores).choose_feasible(0.8)
        floored = Chooser(model, graph, Choice.make(method, floor=1), scores)
        widths = {name: len(k) for name, k in graph.kept(floored.choose_feasible(0.8)).items()}
        assert widths == {"0": 4, "3": 1, "8": 3}  # k = int(21 x 0.2) = 4


def test_an_unknown_method_comes_with_a_suggestion():
    with pytest.raises(UsageError, match=r"unknown method 'rnap-f'\. Did you mean 'ranp-f'\?"):
        find_method("rnap-f")


def test_scores_of_another_network_are_refused(scored):
    _, _, scores = scored
    other = classifier(width=8)
    with pytest.raises(IntegrityError, match="of another network"):
        Chooser(other, traced(other, 1, 2, 8, 8), Choice.make("ranp-f"), scores)


def test_missing_scores_and_statistics_are_named(scored):
    model, graph, _ = scored
    with pytest.raises(UsageError, match="'ranp-f' needs scores"):
        Chooser(model, graph, Choice.make("ranp-f")).choose(0.5)
    plain = given_scores(model, pictures(1))
    for method, statistic in (
        ("snip", "abs"),
        ("mnmg-max", "signed"),
        ("grasp", "grasp"),
        ("mpmg-max", "abs"),
    ):
        with pytest.raises(UsageError, match=f"hold no '{statistic}'"):
            Chooser(model, graph, Choice.make(method), plain).choose(0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"floor": -1}, "floor must not be negative"),
        ({"multiple": 0}, "multiple must be at least 1"),
        ({"resource": "watts"}, "unknown resource 'watts'"),
        ({"resource": {"0": 1.0}}, "no cost for layer '3'"),
        ({"coupling": "most"}, "coupling must be one of 'paper', 'sum', 'max', 'mean', got 'most'"),
        ({"lam": float("inf")}, "finite and not negative"),
        ({"lam": -3.0}, "finite and not negative"),
    ],
)
def test_wrong_options_are_refused(scored, options, message):
    model, graph, scores = scored
    with pytest.raises(UsageError, match=message):
        Chooser(model, graph, Choice.make("ranp-f", **options), scores)
