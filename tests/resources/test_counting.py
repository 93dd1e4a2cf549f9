"""Counting, against formulas worked out by hand, PyTorch's own counter, and the slim network."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ranp.errors import UsageError
from ranp.graph import build_graph
from ranp.models import build_network
from ranp.pruning.coupling import apply_floors
from ranp.resources import CONVENTIONS, count, count_choices
from ranp.slimming import slim_model
from tests.oracle import random_alive
from tests.zoo import topologies
from tests.zoo.case import CASES, Net, graph_of

SMALL = {
    "unet3d-shapenet": (1, 1, 16, 16, 16),
    "unet3d-brats": (1, 4, 16, 16, 16),
    "mobilenetv2-ucf101": (1, 3, 8, 32, 32),
    "i3d-ucf101": (1, 3, 16, 224, 224),
}


def flops(costs):
    return {layer.name: layer.flops for layer in costs.layers}


def total(costs):
    return sum(layer.flops for layer in costs.layers)


# What PyTorch's counter leaves out: products of a matrix or a vector with a vector.
VECTOR_PRODUCTS = {
    torch.ops.aten.mv: lambda a, b, *_, **__: 2 * a[0] * a[1],
    torch.ops.aten.dot: lambda a, b, *_, **__: 2 * a[0],
    torch.ops.aten.vdot: lambda a, b, *_, **__: 2 * a[0],
}


@contextmanager
def without_fused_attention():
    """PyTorch's counter does not see into fused kernels."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def counted_by_pytorch(model, inputs):
    counter = FlopCounterMode(display=False, custom_mapping=VECTOR_PRODUCTS)
    with counter, torch.no_grad(), without_fused_attention():
        model.eval()(*inputs)
    assert counter.get_total_flops() % 2 == 0
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("name", sorted(CASES))
def test_macs_are_half_of_what_pytorch_counts(name):
    case = CASES[name]
    model, inputs, graph = case.make(), case.inputs(), graph_of(case)
    assert total(count(model, graph, convention="macs")) == counted_by_pytorch(model, inputs)


LARGER = ("mobilenetv2-ucf101", "unet3d-shapenet", "i3d-ucf101")


@pytest.mark.parametrize(
    "name", ["unet3d-brats", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGER)]
)
def test_macs_of_the_papers_networks(name):
    model = build_network(name)
    graph = build_graph(model, SMALL[name])
    expected = counted_by_pytorch(model, (torch.zeros(SMALL[name]),))
    assert total(count(model, graph, convention="macs")) == expected


def everything():
    """One module of every kind that a convention has a formula for."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),  # 0: 8 x 8 x 8 out, 27 products
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False),  # 3: 2 x 9 products
        nn.GroupNorm(2, 8),
        nn.MaxPool2d(2),  # 5: 8 x 4 x 4
        nn.ConvTranspose2d(8, 4, 2, stride=2),  # 6: 4 x 8 x 8 out, 8 x 4 products as printed
        nn.AvgPool2d((2, 4)),  # 7: 4 x 4 x 2 out
        nn.AdaptiveAvgPool2d(1),  # 8: 4 out, of 8 each
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(4, 6),  # 11
        nn.Softmax(1),  # 12
    )


def test_paper_and_appendix_by_hand():
    model = everything()
    graph = build_graph(model, (2, 3, 8, 8))
    paper = {
        "0": 2 * 512 * (27 + 1),
        "1": 2 * 512 * 4,
        "2": 0,
        "3": 2 * 512 * 18,
        "4": 2 * 512 * 4,
        "5": 0,
        "6": 2 * 256 * (32 + 1),
        "7": 2 * 32 * (8 + 1),
        "8": 2 * 4 * (8 + 1),
        "9": 0,
        "10": 0,
        "11": 2 * 6 * (2 * 4 - 1 + 1),
        "12": 2 * (3 * 6 - 1),
    }
    assert flops(count(model, graph)) == paper
    appendix = paper | {
        "0": 2 * 512 * (2 * 27 - 1 + 1),
        "3": 2 * 512 * (2 * 18 - 1),
        "6": 2 * 256 * (2 * 32 - 1 + 1),
    }
    assert flops(count(model, graph, convention="appendix")) == appendix


@pytest.mark.parametrize("kernel", [2, (2, 2, 2), [2, 2, 2]])
def test_pooling_kernels_are_numbers_tuples_or_lists(kernel):
    model = nn.Sequential(nn.Conv3d(1, 4, 1), nn.AvgPool3d(kernel))
    costs = count(model, build_graph(model, (1, 1, 8, 8, 8)))
    assert flops(costs)["1"] == 4 * 4**3 * (2**3 + 1)


def test_activations_parameters_and_neurons_by_hand():
    model = everything()
    costs = count(model, build_graph(model, (2, 3, 8, 8)))
    outputs = [512, 512, 512, 512, 512, 128, 256, 32, 4, 4, 4, 6, 6]
    assert [layer.activations for layer in costs.layers] == [2 * n for n in outputs]
    parameters = [8 * 27 + 8, 16, 0, 8 * 18, 16, 0, 8 * 4 * 4 + 4, 0, 0, 0, 0, 4 * 6 + 6, 0]
    assert [layer.parameters for layer in costs.layers] == parameters
    assert costs.neurons == 8 + 8 + 4 + 6
    assert costs.param_mb == sum(parameters) * 4 / 2**20
    assert costs.memory_mb == 2 * sum(outputs) * 4 / 2**20
    assert costs.gflops == total(costs) / 1e9
    assert costs.not_counted == ()


def test_a_module_called_twice_counts_twice_and_owns_its_parameters_once():
    model = Net(lambda net, x: net.a(net.a(x)), a=nn.Conv1d(4, 4, 3, padding=1))
    (layer,) = count(model, build_graph(model, (1, 4, 10))).layers
    assert layer.flops == 2 * 40 * (12 + 1)
    assert layer.activations == 80
    assert layer.parameters == 4 * 4 * 3 + 4


def test_what_has_no_formula_is_named():
    class Odd(nn.Module):
        def forward(self, x):
            return x.sin()

    model = nn.Sequential(nn.Linear(3, 4), Odd(), nn.Linear(4, 2))
    costs = count(model, build_graph(model, (1, 3)))
    assert costs.not_counted == ("1 (Odd)",)
    assert count(model, build_graph(model, (1, 3)), convention="macs").not_counted == ()


def test_functional_calls_count_as_macs_only():
    model = Net(
        lambda net, x: F.linear(F.relu(net.a(x)), net.raw),
        a=nn.Linear(3, 5),
        raw=nn.Parameter(torch.ones(2, 5)),
    )
    graph = build_graph(model, (4, 3))
    assert total(count(model, graph)) == 4 * 5 * (2 * 3 - 1 + 1)
    assert total(count(model, graph, convention="macs")) == 4 * (15 + 10)


def test_any_size_costs_no_memory():
    model = build_network("unet3d-brats")
    costs = count(model, build_graph(model, (1, 4, 256, 256, 256)))
    assert costs.memory_mb == pytest.approx(8 * 3628.0, abs=0.05)


def test_an_unknown_convention_is_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(UsageError, match="one of 'paper', 'appendix', 'macs', got 'flops'"):
        count(model, build_graph(model, (1, 2)), convention="flops")


def plain(costs):
    return {x.name: (x.neurons, x.flops, x.parameters, x.activations) for x in costs.layers}


def some_alive(graph, share, seed):
    """A random choice with two neurons in every layer: over one, an einsum is no contraction."""
    anything = {name: np.zeros(len(layer)) for name, layer in graph.layers.items()}
    return apply_floors(
        graph, random_alive(graph, share, seed), anything, dict.fromkeys(graph.layers, 2)
    )


def assert_counts_the_slim_network(model, graph, alive, inputs):
    slim = slim_model(model, graph, alive)
    slim_graph = build_graph(slim, inputs)
    for convention in CONVENTIONS:
        expected = count(slim, slim_graph, convention=convention)
        found = count(model, graph, alive, convention=convention)
        assert plain(found) == plain(expected), convention
    assert found.parameters == sum(p.numel() for p in slim.parameters())


@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=1, deadline=None)
@given(share=st.sampled_from([0.7, 0.5, 0.3, 0.9]), seed=st.integers(0, 999))
def test_counting_what_lives_is_counting_the_slim_network(name, share, seed):
    case = CASES[name]
    model, inputs, graph = case.make(), case.inputs(), graph_of(case)
    assert_counts_the_slim_network(model, graph, some_alive(graph, share, seed), inputs)


@pytest.mark.parametrize("name", ["unet3d-brats", "mobilenetv2-ucf101"])
def test_counting_what_lives_of_the_papers_networks(name):
    with torch.device("meta"):
        model = build_network(name)
    graph = build_graph(model, SMALL[name])
    assert count(model, graph).parameters == sum(p.numel() for p in model.parameters())
    for share, seed in ((0.3, 0), (0.8, 1)):
        alive = random_alive(graph, share, seed)
        assert_counts_the_slim_network(model, graph, alive, SMALL[name])


@pytest.mark.parametrize("case", topologies.TOPOLOGIES[::3], ids=lambda case: case.name)
def test_several_choices_at_once_cost_what_each_costs(case):
    model, graph = case.make(), graph_of(case)
    choices = [graph.all_alive(), *(random_alive(graph, 0.5, seed) for seed in (0, 1))]
    counted = count_choices(model, graph, np.stack(choices, axis=1))
    for number, alive in enumerate(choices):
        for row, layer in enumerate(count(model, graph, alive).layers):
            assert {key: column[row, number] for key, column in counted.items()} == {
                key: getattr(layer, key) for key in counted
            }


def test_the_repr_is_one_line_of_totals():
    model = nn.Conv3d(1, 2, 1, bias=False)
    assert repr(count(model, (1, 1, 4, 4, 4))) == (
        "Costs(1.28e-07 GFLOPs, 2 parameters, 0.0 MB of activations, 2 neurons)"
    )
