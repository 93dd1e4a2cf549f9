"""Allocations by rule: shares, floors, and budgets that are met."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ranp.errors import InfeasibleError, UsageError
from ranp.graph import build_graph
from ranp.models import UNet3D, build_network, find_network
from ranp.pruning import Choice, Chooser, find_method
from ranp.pruning.allocation import network_floors, thin_layers, tilted_weights
from ranp.pruning.coupling import channel_groups
from ranp.pruning.search import meet_budget
from ranp.resources import count
from ranp.resources.budgets import Budget


def chooser_of(
    model: nn.Module, shape: tuple[int, ...], method: str, **settings: object
) -> Chooser:
    return Chooser(model, build_graph(model, shape), Choice.make(method, **settings))


def widths(chooser: Chooser, alive: np.ndarray) -> list[int]:
    return [len(kept) for kept in chooser.graph.kept(alive).values()]


UNET = chooser_of(UNet3D(1, 3, levels=3, base_width=16), (1, 1, 8, 8, 8), "power")


def with_method(method: str, **settings: object) -> Chooser:
    return Chooser(UNET.model, UNET.graph, Choice.make(method, **settings))


def test_shares_follow_the_cost_of_a_neuron_to_the_power():
    # Three 1x1 convolutions of 64 neurons at 16, 4 and 1 pixels, 64 inputs each. Without one
    # neuron of the first, 64 x 16 operations of it and 64 x 4 of the second are saved.
    model = nn.Sequential(
        nn.Conv2d(64, 64, 1, bias=False), nn.AvgPool2d(2), nn.Conv2d(64, 64, 1, bias=False),
        nn.AvgPool2d(2), nn.Conv2d(64, 64, 1, bias=False), nn.Conv2d(64, 64, 1, bias=False),
    )  # fmt: skip
    chooser = chooser_of(model, (1, 64, 4, 4), "power:-0.5", floor=1)
    pools = [4 * 5, 1 * 5, 0]  # average pooling costs kernel volume + 1 for every output
    costs = [
        64 * 16 + 64 * 4 + pools[0],
        64 * 4 + 64 * 1 + pools[1],
        64 * 1 + 64 * 1 + pools[2],
    ]
    assert chooser.marginal_costs.tolist() == costs
    powers = np.sqrt(costs)
    expected = np.ceil(64 * 3 * 0.25 * powers / powers.sum())
    assert widths(chooser, chooser.choose(0.75))[:3] == expected.tolist()


def test_widths_of_a_unet_grow_by_the_power_from_level_to_level():
    # Channels double and voxels are an eighth: a neuron costs a quarter from level to level.
    shape = (1, 1, 32, 32, 32)
    with torch.device("meta"):
        model = UNet3D(1, 2, levels=4, base_width=256, width_cap=10_000)
    graph = build_graph(model, shape)
    for exponent, growth in ((0, 2), (-0.25, 2**0.5), (-0.5, 1), (0.25, 2 * 2**0.5)):
        chooser = Chooser(model, graph, Choice.make(f"power:{exponent}", floor=1))
        kept = {n: len(k) for n, k in graph.kept(chooser.choose(0.9)).items()}
        second, third = kept["encoder.1.conv2"], kept["encoder.2.conv2"]
        assert third / second == pytest.approx(growth, rel=0.05)


@given(exponent=st.floats(-1, 1), sparsity=st.floats(0, 1))
def test_equal_costs_give_thin(exponent, sparsity):
    equal = dict.fromkeys(UNET.graph.layers, 3.5)
    power = with_method(f"power:{exponent}", resource=equal, floor=1)
    thin = with_method("thin", floor=1)
    assert (power.choose(sparsity) == thin.choose(sparsity)).all()


@settings(max_examples=50)
@given(exponent=st.floats(-1, 1), sparsities=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_less_sparsity_keeps_all_that_more_keeps(exponent, sparsities):
    chooser = with_method(f"power:{exponent}")
    wide, narrow = (chooser.choose(sparsity) for sparsity in sorted(sparsities))
    assert (narrow <= wide).all()


@settings(max_examples=50)
@given(exponent=st.floats(-2, 2), sparsity=st.floats(0, 1))
def test_no_layer_falls_below_its_floor(exponent, sparsity):
    chooser = with_method(f"power:{exponent}")
    alive = chooser.choose(sparsity)
    floors = chooser.floors
    for name, kept in chooser.graph.kept(alive).items():
        assert len(kept) >= floors[name] >= min(2, len(chooser.graph.layers[name]))


@settings(max_examples=20)
@given(exponent=st.floats(-0.5, 0.5), shares=st.tuples(st.floats(0.05, 0.9), st.floats(0.05, 0.9)))
def test_cost_is_monotone_in_the_budget(exponent, shares):
    chooser = with_method(f"power:{exponent}")
    small, large = (
        chooser.costs(meet_budget(chooser, [Budget("flops", share, of_full=True)])[1]).gflops
        for share in sorted(shares)
    )
    assert small <= large * 1.02


def test_a_head_reads_as_many_channels_as_it_has_classes():
    model = UNet3D(1, 5, levels=2, base_width=32)
    graph = build_graph(model, (1, 1, 8, 8, 8))
    floors = network_floors(graph, channel_groups(graph))
    assert floors.pop("decoder.0.conv2") == 5
    assert floors.pop("head") == 2
    assert set(floors.values()) == {2}


def test_many_classes_ask_for_a_quarter_of_what_their_head_reads():
    model = UNet3D(1, 50, levels=2, base_width=64)
    graph = build_graph(model, (1, 1, 8, 8, 8))
    assert network_floors(graph, channel_groups(graph))["decoder.0.conv2"] == 16


def test_protected_layers_are_no_heads():
    model = nn.Sequential(nn.Conv2d(1, 64, 1), nn.Conv2d(64, 32, 1), nn.Conv2d(32, 2, 1))
    graph = build_graph(model, (1, 1, 2, 2), protect=["1"])
    assert network_floors(graph, channel_groups(graph)) == {"0": 2, "1": 2, "2": 2}


def test_floors_bind_only_where_much_is_removed():
    chooser = with_method("power:-0.25")

    def at_floor(sparsity):
        kept = chooser.graph.kept(chooser.choose(sparsity))
        floors, neurons = chooser.floors, chooser.neurons
        return {name for name in floors if len(kept[name]) <= floors[name] < neurons[name]}

    assert at_floor(0.999) == set(chooser.graph.layers) - {"head"}
    assert at_floor(0.1) == set()


def test_tilts_move_width_between_resolutions_and_from_early_to_late():
    chooser = with_method("thin")
    tilts = tilted_weights(chooser, chooser.choose(0.5))
    layers = [next(iter(group.positions)) for group in chooser.channel_groups]
    by_layer = {name: dict(zip(layers, weights, strict=True)) for name, weights in tilts.items()}
    high, late = by_layer["+high-resolution"], by_layer["+late"]
    assert high["decoder.1.conv1"] > 1.4 * high["encoder.2.conv2"]
    assert late["decoder.1.conv2"] > 1.4 * late["encoder.0.conv1"]
    for one, other in (("+high-resolution", "+low-resolution"), ("+late", "+early")):
        product = np.array(tilts[one]) * np.array(tilts[other])
        assert product == pytest.approx(np.full(len(layers), 0.25))  # 0.5 e^t x 0.5 e^-t


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("power:", "must be followed by a number, got 'power:'"),
        ("power:wide", "must be followed by a number, got 'power:wide'"),
        ("powr:-0.25", "unknown method 'powr:-0.25'"),
        ("thin:3", "method 'thin' takes no number, got 'thin:3'; use 'thin'"),
    ],
)
def test_the_number_behind_a_name_is_checked(name, message):
    with pytest.raises(UsageError, match=message):
        find_method(name)


def test_lambda_may_stand_behind_the_name_of_a_method_that_reweights():
    named, given = Choice.make("ranp-f:3"), Choice.make("ranp-f", lam=3)
    assert (named.lam, named.method.name) == (3, "ranp-f:3")
    assert replace(named, method=given.method) == given
    assert Choice.make("ranp-m:0.5", lam=7).lam == 0.5  # a race may give one to all others
    with pytest.raises(UsageError, match=r"lambda must be finite and not negative, got -1\.0"):
        Choice.make("ranp-f:-1")


BUDGETS = (0.5, 0.25, 0.1, 0.05, 0.02)


def monai_networks():
    from monai.networks.nets import DynUNet, ResNet, SegResNet, UNet

    cube = (1, 1, 32, 32, 32)
    resnet = {"n_input_channels": 1, "num_classes": 10}
    return {
        "UNet": (UNet(3, 1, 3, (32, 64, 128, 256), (2, 2, 2), num_res_units=2), cube),
        "DynUNet": (DynUNet(3, 1, 3, [3] * 4, [1, 2, 2, 2], [2, 2, 2]), cube),
        "SegResNet": (SegResNet(init_filters=32, in_channels=1, out_channels=3), cube),
        "ResNet": (ResNet("basic", [2, 2, 2, 2], [64, 128, 256, 512], **resnet), cube),
    }


def check_budgets(model: nn.Module, shape: tuple[int, ...], exponents: tuple[float, ...]) -> None:
    graph = build_graph(model, shape)
    full = count(model, graph).gflops
    for exponent in exponents:
        chooser = Chooser(model, graph, Choice.make(f"power:{exponent}"))
        least = count(model, graph, chooser.choose(1.0)).gflops  # every layer at its floor
        for share in BUDGETS:
            if share * full < least:
                with pytest.raises(InfeasibleError, match="cannot reach"):
                    meet_budget(chooser, [Budget("flops", share, of_full=True)])
                continue
            _, alive = meet_budget(chooser, [Budget("flops", share, of_full=True)])
            assert count(model, graph, alive).gflops == pytest.approx(share * full, rel=0.02)
            for name, kept in graph.kept(alive).items():
                assert len(kept) >= chooser.floors[name], (name, share)


def test_power_meets_budgets_on_a_unet():
    check_budgets(UNet3D(1, 3, base_width=32), (1, 1, 16, 16, 16), (-0.5, -0.25, 0.25))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["UNet", "DynUNet", "SegResNet", "ResNet"])
def test_power_meets_budgets_on_networks_of_monai(name):
    check_budgets(*monai_networks()[name], (-0.5, -0.25, 0, 0.25))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["unet3d-shapenet", "unet3d-brats", "mobilenetv2-ucf101", "i3d-ucf101"]
)
def test_power_meets_budgets_on_networks_of_the_paper(name):
    with torch.device("meta"):
        model = build_network(name)
    check_budgets(model, find_network(name).input_shape, (-0.5, -0.25, 0, 0.25))


@pytest.mark.parametrize(
    ("layers", "words"),
    [(["0"], "layer '0' keeps a single"), (["0", "1"], "layers '0' and 1 more keep a single")],
)
def test_thin_layers_are_counted_in_the_warning(layers, words):
    model = nn.Sequential(nn.Conv3d(1, 4, 1), nn.Conv3d(4, 4, 1), nn.Conv3d(4, 1, 1))
    graph = build_graph(model, (1, 1, 2, 2, 2))
    alive = graph.all_alive()
    for name in layers:
        alive[graph.layers[name].neurons[1:]] = False
    (note,) = thin_layers(graph, alive)
    assert note.startswith(words)
