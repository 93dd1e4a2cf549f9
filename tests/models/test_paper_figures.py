"""The networks cost what the paper prints, counted here without any of the library's counters.

Counting needs no numbers, only shapes: everything runs on the meta device.
"""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from ranp import models

PAPER = json.loads((files("ranp.experiments") / "paper.json").read_text())


class Cost(NamedTuple):
    gflops: float
    param_mb: float
    memory_mb: float
    neurons: int


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return models.build_network(name).eval()


def leaves(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if not [*module.children()]}


def layers(model: nn.Module) -> dict[str, nn.Conv3d | nn.Linear]:
    return {n: m for n, m in leaves(model).items() if isinstance(m, nn.Conv3d | nn.Linear)}


def flops(module: nn.Module, out: torch.Tensor) -> int:
    if isinstance(module, nn.Conv3d):
        taps = module.in_channels // module.groups * math.prod(module.kernel_size)
        return out.numel() * (taps + (module.bias is not None))
    if isinstance(module, nn.Linear):
        return out.numel() * (2 * module.in_features - 1 + (module.bias is not None))
    if isinstance(module, nn.BatchNorm3d):
        return out.numel() * 4
    if isinstance(module, nn.AvgPool3d):
        return out.numel() * (math.prod(module.kernel_size) + 1)
    if isinstance(module, nn.Softmax):
        return out.shape[0] * (3 * out.shape[1] - 1)
    assert isinstance(module, nn.ReLU | nn.ReLU6 | nn.MaxPool3d | nn.Dropout), module
    return 0


def count(model: nn.Module, input_shape: list[int]) -> Cost:
    seen: list[tuple[int, int]] = []
    for module in leaves(model).values():
        module.register_forward_hook(
            lambda module, _, out: seen.append((flops(module, out), out.numel()))
        )
    model(torch.empty(input_shape, device="meta"))
    return Cost(
        gflops=sum(flop for flop, _ in seen) / 1e9,
        param_mb=sum(p.numel() for p in model.parameters()) * 4 / 2**20,
        memory_mb=sum(size for _, size in seen) * 4 / 2**20,
        neurons=sum(layer.weight.shape[0] for layer in layers(model).values()),
    )


def shrink_while_running(model: nn.Module, kept: dict[str, int]) -> None:
    """Lets every layer adapt to what arrives, and give only as many channels as it keeps.

    The forward itself is untouched, so this also shows that it hard-codes no channel count.
    Depthwise convolutions follow the layer that feeds them.
    """

    def resized(tensor: torch.Tensor | None, shape: list[int]) -> nn.Parameter | None:
        return None if tensor is None else nn.Parameter(torch.empty(shape, device="meta"))

    def adapt(name: str, module: nn.Module, channels: int) -> None:
        if isinstance(module, nn.BatchNorm3d):
            module.weight = resized(module.weight, [channels])
            module.bias = resized(module.bias, [channels])
            module.running_mean = torch.empty(channels, device="meta")
            module.running_var = torch.empty(channels, device="meta")
            module.num_features = channels
            return
        depthwise = getattr(module, "groups", 1) > 1
        out = channels if depthwise else kept[name]
        kernel = module.weight.shape[2:]
        module.weight = resized(module.weight, [out, 1 if depthwise else channels, *kernel])
        module.bias = resized(module.bias, [out])
        if isinstance(module, nn.Conv3d):
            module.groups = channels if depthwise else 1
            module.in_channels, module.out_channels = channels, out
        else:
            module.in_features, module.out_features = channels, out

    for name, module in leaves(model).items():
        if isinstance(module, nn.Conv3d | nn.Linear | nn.BatchNorm3d):
            module.register_forward_pre_hook(
                lambda module, args, name=name: adapt(name, module, args[0].shape[1])
            )


def assert_printed(cost: Cost, row: dict[str, float]) -> None:
    """Every figure to its last printed digit; one of all was rounded twice (see its note)."""
    for figure in ("gflops", "param_mb", "memory_mb"):
        found = f"{getattr(cost, figure):.2f}"
        if figure == "param_mb" and "4.555" in str(row.get("note", "")):
            assert f"{cost.param_mb:.3f}" == "4.555"
            found = "4.56"
        assert found == f"{row[figure]:.2f}", figure


@pytest.mark.parametrize("name", PAPER["full"])
def test_full_network(name: str) -> None:
    row = PAPER["full"][name]
    cost = count(on_meta(name), row["input"])
    assert_printed(cost, row)
    if "neurons" in row:
        assert cost.neurons == row["neurons"]


@pytest.mark.parametrize("name", PAPER["layerwise"])
def test_layerwise_pruned_network(name: str) -> None:
    row = PAPER["layerwise"][name]
    model = on_meta(name)
    neurons = {layer: module.weight.shape[0] for layer, module in layers(model).items()}
    kept = {layer: math.ceil(n * (1 - row["sparsity"])) for layer, n in neurons.items()}
    kept["head"] = neurons["head"]
    shrink_while_running(model, kept)
    assert_printed(count(model, row["input"]), row)


@pytest.mark.parametrize("name", PAPER["random"])
def test_randomly_pruned_network(name: str) -> None:
    """The draw numbers all neurons in layer order, so this pins the order of the layers too."""
    row = PAPER["random"][name]
    model = on_meta(name)
    neurons = {layer: module.weight.shape[0] for layer, module in layers(model).items()}
    total = sum(neurons.values())
    alive = np.ones(total, dtype=bool)
    removed = np.random.RandomState(0).choice(
        np.arange(total), int(total * row["sparsity"]), replace=False
    )
    alive[removed] = False
    starts = np.cumsum([0, *neurons.values()])
    kept = {
        layer: int(alive[start : start + n].sum())
        for (layer, n), start in zip(neurons.items(), starts[:-1], strict=True)
    }
    kept["head"] = neurons["head"]
    if name == "mobilenetv2-ucf101":
        tie_residual_stages(kept)
    shrink_while_running(model, kept)
    assert_printed(count(model, row["input"]), row)


def tie_residual_stages(kept: dict[str, int]) -> None:
    """All layers tied by an addition get the largest count among them."""
    block = 0
    for repeats in (1, 2, 3, 4, 3, 3, 1):
        tied = [f"blocks.{block + repeat}.project.conv" for repeat in range(repeats)]
        kept.update(dict.fromkeys(tied, max(kept[layer] for layer in tied)))
        block += repeats


@pytest.mark.parametrize("name", PAPER["full"])
def test_modules_run_in_the_order_of_their_definition(name: str) -> None:
    model = on_meta(name)
    ran: list[str] = []
    for leaf, module in leaves(model).items():
        module.register_forward_hook(lambda *_, leaf=leaf: ran.append(leaf))
    model(torch.empty(PAPER["full"][name]["input"], device="meta"))
    assert ran == list(leaves(model))
