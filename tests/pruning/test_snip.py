"""SNIP made dense: which single weights survive, and what dies with the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ranp.errors import InfeasibleError
from ranp.pruning import Choice, Chooser, Scores, fingerprint
from ranp.pruning.snip import remove_dead, select_weights
from tests.pruning.nets import given_scores, linear, traced, two_layers
from tests.pruning.test_golden_values import TWO_BATCHES, signed_difference
from tests.zoo.case import Net


def chain():
    """Three linear layers with 3, 3 and 2 neurons."""
    return Net(
        lambda net, x: net.c(F.relu(net.b(F.relu(net.a(x))))),
        a=linear([[1, 1]] * 3), b=linear([[1, 1, 1]] * 3), c=linear([[1, 1, 1]] * 2),
    )  # fmt: skip


def kept(graph, alive):
    return {name: k.tolist() for name, k in graph.kept(alive).items()}


def test_neurons_without_weights_go_and_take_others_with_them():
    graph = traced(chain(), 1, 2)
    # Of a (2 inputs) and b (3 inputs) the seven largest of 15 survive; c stays whole.
    sensitivity = {
        "a": torch.tensor([[9.0, 0], [8, 7], [0, 0]]),
        "b": torch.tensor([[6.0, 0, 0], [0, 0, 5], [0, 4, 3]]),
        "c": torch.zeros(2, 3),
    }
    alive = select_weights(graph, sensitivity, sparsity=8 / 15)
    # a_2 has no weight left. b_1 lives on a_2 alone: dead (forward). b_2 has a_1 besides a_2.
    assert kept(graph, alive) == {"a": [0, 1], "b": [0, 2], "c": [0, 1]}


def test_what_feeds_nothing_goes_backward():
    graph = traced(chain(), 1, 2)
    everything = {n: np.ones((len(x), len(x.inputs)), bool) for n, x in graph.layers.items()}
    # Only a_1 is read, by b_0 alone; b_1 and b_2 have inputs, but c does not read b_2.
    everything["b"] = np.array([[0, 1, 0], [0, 1, 0], [0, 1, 0]], bool)
    everything["c"] = np.array([[1, 1, 0], [1, 1, 0]], bool)
    assert kept(graph, remove_dead(graph, everything)) == {"a": [1], "b": [0, 1], "c": [0, 1]}


def test_death_goes_along_the_chain_until_nothing_changes():
    graph = traced(chain(), 1, 2)
    connections = {
        "a": np.array([[1, 0], [0, 0], [0, 1]], bool),
        "b": np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]], bool),
        "c": np.array([[1, 0, 1], [1, 0, 1]], bool),
    }
    # a_1 has no input: b_0 dies. c does not read b_1: a_0, which feeds it alone, dies.
    assert kept(graph, remove_dead(graph, connections)) == {"a": [2], "b": [2], "c": [0, 1]}


def test_groups_connect_within_themselves():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(2, 4, 1, bias=False), nn.ReLU(), nn.Conv1d(4, 4, 1, groups=2, bias=False),
        nn.ReLU(), nn.Conv1d(4, 2, 1, bias=False),
    )  # fmt: skip
    graph = traced(model, 1, 2, 3)
    sensitivity = {"0": torch.ones(4, 2), "2": torch.ones(4, 2), "4": torch.ones(2, 4)}
    # Nothing reads channels 0 and 2, the first of each group (groups of the graph stay alike).
    sensitivity["2"][:, 0] = 0
    alive = select_weights(graph, sensitivity, sparsity=4 / 16)
    assert kept(graph, alive)["0"] == [1, 3]


def test_a_residual_channel_lives_as_long_as_one_of_its_sources():
    model = Net(
        lambda net, x: net.c(F.relu(net.a(x) + net.b(x))),
        a=linear([[1, 1]] * 2), b=linear([[1, 1]] * 2), c=linear([[1, 1]] * 2),
    )  # fmt: skip
    graph = traced(model, 1, 2)
    connections = {
        "a": np.array([[1, 0], [0, 0]], bool),
        "b": np.array([[0, 0], [0, 0]], bool),
        "c": np.ones((2, 2), bool),
    }
    assert kept(graph, remove_dead(graph, connections)) == {"a": [0], "b": [0], "c": [0, 1]}


def test_the_method_ranks_magnitudes_taken_in_every_batch():
    # From test_golden_values: the averages of |g| of a are (1.5 0.75; 15 3.75; 3.5 7), and of g
    # (-1.5 -0.75; 5 -3.75; -3.5 7). Without the last layer there are 6 weights; the largest is in
    # a_1 by the first and in a_2 by the second.
    model = two_layers()
    graph = traced(model, 1, 2)
    scores = given_scores(model, TWO_BATCHES, signed_difference, "abs")
    chooser = Chooser(model, graph, Choice.make("snip"), scores)
    assert kept(graph, chooser.choose(1 - 1.5 / 6))["a"] == [1]
    assert kept(graph, chooser.choose(1 - 3.5 / 6))["a"] == [1, 2]
    assert kept(graph, chooser.choose(1 - 5.5 / 6))["a"] == [0, 1, 2]
    assert kept(graph, chooser.choose(0.99)) == {"a": [], "b": [0, 1]}
    np.testing.assert_allclose(chooser.importance["a"], [2.25, 18.75, 10.5])


def test_weights_that_tie_at_zero_are_kept_only_as_far_as_asked_for():
    graph = traced(chain(), 1, 2)
    dead = {"a": torch.zeros(3, 2), "b": torch.zeros(3, 3), "c": torch.zeros(2, 3)}
    # Of 15 weights of a and b the first int(15 x 0.5) = 7 survive: all of a, the first one of b.
    assert kept(graph, select_weights(graph, dead, 0.5)) == {"a": [0], "b": [0], "c": [0, 1]}
    assert graph.empty_layers(select_weights(graph, dead, 0.9))


def test_depthwise_layers_decide_nothing():
    model = nn.Sequential(
        nn.Conv1d(2, 3, 1, bias=False), nn.Conv1d(3, 3, 1, groups=3, bias=False),
        nn.Conv1d(3, 2, 1, bias=False),
    )  # fmt: skip
    graph = traced(model, 1, 2, 4)
    connections = {n: np.ones((len(x), len(x.inputs)), bool) for n, x in graph.layers.items()}
    connections["1"] = np.zeros((3, 3), bool)  # it loses all its weights, and follows all the same
    assert kept(graph, remove_dead(graph, connections))["0"] == [0, 1, 2]


def test_a_layer_whose_output_is_not_used_has_no_largest_sparsity():
    model = Net(
        lambda net, x: (net.unused(x), net.b(F.relu(net.a(x))))[1],
        a=linear([[1, 1]] * 3), b=linear([[1, 1, 1]] * 2), unused=linear([[1, 1]] * 3),
    )  # fmt: skip
    graph = traced(model, 1, 2)
    scores = given_scores(model, TWO_BATCHES, signed_difference, "abs")
    with pytest.raises(InfeasibleError, match="no neuron in layer 'unused' at any sparsity"):
        Chooser(model, graph, Choice.make("snip"), scores).choose_feasible(0.5)
    floored = Chooser(model, graph, Choice.make("snip", floor=1), scores).choose_feasible(0.5)
    assert len(kept(graph, floored)["unused"]) == 1


def skipped():
    """a is read by b and, beside it, by the last layer: 3, 2 and 2 neurons."""

    def forward(net, x):
        skip = F.relu(net.a(x))
        return net.c(torch.cat([skip, F.relu(net.b(skip))], 1))

    return Net(forward, a=linear([[1, 1]] * 3), b=linear([[1] * 3] * 2), c=linear([[1] * 5] * 2))


@pytest.mark.parametrize(
    ("readers", "a", "b"),
    [("any", [0, 1, 2], [0, 1]), ("all", [0], [0, 1]), ("none", [0, 1, 2], [0, 1])],
)
def test_whom_a_skip_neuron_must_be_of_use_to(readers, a, b):
    graph = traced(skipped(), 1, 2)
    connections = {
        "a": np.ones((3, 2), bool),
        "b": np.array([[0, 1, 0], [1, 0, 0]], bool),
        # Reads a_0 and a_2; a_1 is read by b_0 alone, which lives on it alone, and stays without
        # it by the rule "all": it goes backward last.
        "c": np.array([[1, 0, 1, 1, 1]] * 2, bool),
    }
    alive = remove_dead(graph, connections, readers)
    assert kept(graph, alive) == {"a": a, "b": b, "c": [0, 1]}


def test_forward_only_keeps_what_feeds_nothing_and_the_authors_what_feeds_depthwise_layers():
    model = nn.Sequential(
        nn.Conv1d(2, 3, 1, bias=False), nn.Conv1d(3, 3, 1, groups=3, bias=False),
        nn.Conv1d(3, 2, 1, bias=False),
    )  # fmt: skip
    graph = traced(model, 1, 2, 4)
    connections = {"0": np.array([[1, 0], [1, 0], [0, 0]], bool)}
    connections["2"] = np.array([[1, 0, 1]] * 2, bool)
    for readers, alive in (("any", [0]), ("all", [0, 1]), ("none", [0, 1])):
        assert kept(graph, remove_dead(graph, connections, readers))["0"] == alive


@pytest.mark.parametrize(("bias", "a", "b"), [(False, [0], [0]), (True, [0, 1], [0, 2])])
def test_the_authors_rank_the_last_layer_and_count_biases(bias, a, b):
    model = chain()
    if bias:
        model.c.bias = nn.Parameter(torch.zeros(2))
    graph = traced(model, 1, 2)
    sensitivity = {
        "a": torch.tensor([[9.0, 0], [8, 7], [0, 0]]),
        "b": torch.tensor([[6.0, 0, 0], [0, 0, 5], [0, 4, 3]]),
        "c": torch.tensor([[10.0, 0, 1], [0, 0, 0]]),
    }
    # Of 21 weights int(0.32 x 21) = 6 survive, down to the 5 of b_1, which dies with a_2: b_0 alone
    # is left, and a_1, which it does not read, goes. With two biases int(0.32 x 23) = 7 do, the 4
    # of b_2 among them. c is ranked and whole: with its own weights pruned it would not read b_2.
    alive = select_weights(graph, sensitivity, 0.68, rank_last=True, readers="all")
    assert kept(graph, alive) == {"a": a, "b": b, "c": [0, 1]}


@pytest.mark.parametrize(
    ("method", "a", "b"),
    [
        ("snip", [0, 1, 2], []),
        ("snip-authors", [0, 1], [0, 1]),
        ("snip-forward", [0, 1, 2], [0, 1]),
    ],
)
def test_the_rules_of_the_three_methods(method, a, b):
    model = skipped()
    graph = traced(model, 1, 2)
    sensitivity = {
        "a": torch.tensor([[25.0, 24], [23, 22], [21, 20]]),
        "b": torch.tensor([[0.0, 9, 0], [8, 0, 0]]),
        "c": torch.tensor([[30.0, 0, 0, 0, 0], [0.0] * 5]),
    }
    scores = Scores(
        batches=1,
        fan_in={"a": 2, "b": 3, "c": 5},
        sums={},
        weight_sums={"abs": sensitivity},
        settings={},
        fingerprint=fingerprint(graph),
    )
    # Without the last layer int(12 x 9.5 / 22) = 5 weights survive, all in a. With it 9 of 22 do:
    # the 30 of c, the six of a and both of b, which reads a_0 and a_1; c is whole and reads a_2.
    chooser = Chooser(model, graph, Choice.make(method), scores)
    assert kept(graph, chooser.choose(1 - 9.5 / 22)) == {"a": a, "b": b, "c": [0, 1]}
