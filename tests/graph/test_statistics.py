"""Norms written by hand are pruned as their modules are; features taken over channels are not.

No statistics are frozen here: slim networks are compared with formulas over the channels they kept,
and with slim networks whose norms are PyTorch's.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ranp
from ranp.graph import build_graph
from ranp.slimming import slim_model
from tests.oracle import random_alive, randomize_
from tests.zoo.case import floats
from tests.zoo.statistics import (
    VOLUME,
    ChannelsFirstNorm,
    GlobalResponseNorm,
    NextBlock,
    StandardizedConv,
    StandardizedConvByBatchNorm,
    StandardizedConvByVariance,
    StandardizedConvInSteps,
    convnext,
)


def network(norm: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv3d(3, 8, 1), norm, nn.Conv3d(8, 6, 1), nn.ReLU(), nn.Conv3d(6, 2, 1)
    return nn.Sequential(*layers).double().eval()


class ChannelsLast(nn.Module):
    """A module in between permutations."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.movedim(1, -1)).movedim(-1, 1)


class FunctionalNorm(nn.Module):
    """A norm of `torch.nn.functional`, its weights and the number of its channels in the module."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.num_features = 8
        self.normalized_shape = torch.Size([8])
        self.weight, self.bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        own = self.weight, self.bias
        if self.kind == "layer":
            return F.layer_norm(x.movedim(1, -1), self.normalized_shape, *own).movedim(-1, 1)
        if self.kind == "instance":
            return F.instance_norm(x, weight=self.weight, bias=self.bias)
        return F.group_norm(x, self.num_features if self.kind == "each" else 2, *own)


@pytest.mark.parametrize(
    ("by_hand", "module"),
    [
        (ChannelsFirstNorm(8), ChannelsLast(nn.LayerNorm(8, eps=1e-6))),
        (ChannelsLast(ChannelsFirstNorm(8, last=True)), ChannelsLast(nn.LayerNorm(8, eps=1e-6))),
        (FunctionalNorm("layer"), ChannelsLast(nn.LayerNorm(8))),
        (FunctionalNorm("instance"), nn.InstanceNorm3d(8, affine=True)),
        (FunctionalNorm("each"), nn.GroupNorm(8, 8)),
        (FunctionalNorm("pairs"), nn.GroupNorm(2, 8)),
    ],
)
def test_a_norm_by_hand_is_pruned_as_the_module_is(by_hand: nn.Module, module: nn.Module) -> None:
    hand, twin = randomize_(network(by_hand)), network(module)
    with torch.no_grad():
        for here, there in zip(twin.parameters(), hand.parameters(), strict=True):
            here.copy_(there)
    (x,) = floats(VOLUME)()
    assert torch.allclose(hand(x), twin(x), atol=1e-12)
    graphs = [build_graph(model, VOLUME) for model in (hand, twin)]
    assert not graphs[0].notes
    for layer, other in zip(graphs[0].layers.values(), graphs[1].layers.values(), strict=True):
        assert graphs[0].removable[layer.neurons].tolist() == (
            graphs[1].removable[other.neurons].tolist()
        )
    pairs = zip((hand, twin), graphs, strict=True)
    slim, slim_twin = [slim_model(model, g, random_alive(g, 0.5)) for model, g in pairs]
    assert slim[0].out_channels == slim_twin[0].out_channels < 8
    assert torch.allclose(slim(x), slim_twin(x), atol=1e-12)


def test_a_response_norm_takes_the_mean_of_what_is_left() -> None:
    model = randomize_(network(ChannelsLast(GlobalResponseNorm(8))))
    graph = build_graph(model, VOLUME)
    alive = random_alive(graph, 0.5)
    kept = np.flatnonzero(alive[graph.layers["0"].neurons])
    assert 0 < len(kept) < 8
    slim = slim_model(model, graph, alive)
    (x,) = floats(VOLUME)()
    with torch.no_grad():
        y = model[0](x)[:, kept].numpy()
        found = slim[1](slim[0](x)).numpy()
    length = np.sqrt((y**2).sum((2, 3, 4), keepdims=True))
    share = length / (length.mean(1, keepdims=True) + 1e-6)
    gamma, beta = (
        parameter.detach().numpy().reshape(1, 8, 1, 1, 1)[:, kept]
        for parameter in (model[1].inner.gamma, model[1].inner.beta)
    )
    assert np.allclose(found, gamma * y * share + beta + y, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "deviation"),
    [
        (StandardizedConv, lambda rows: rows.std(1, ddof=1) + 1e-5),
        (StandardizedConvInSteps, lambda rows: rows.std(1, ddof=1) + 1e-5),
        (StandardizedConvByVariance, lambda rows: np.sqrt(rows.var(1) + 1e-10)),
        (StandardizedConvByBatchNorm, lambda rows: np.sqrt(rows.var(1) + 1e-5)),
    ],
)
def test_weights_are_standardized_over_the_inputs_that_are_left(
    kind: type[nn.Conv3d], deviation
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kind(3, 8, 3), nn.ReLU(), kind(8, 6, 1), nn.Conv3d(6, 2, 1)).double()
    graph = build_graph(model, VOLUME)
    assert all(graph.removable[graph.layers[name].neurons].all() for name in ("0", "2"))
    alive = random_alive(graph, 0.5)
    first, second = (np.flatnonzero(alive[graph.layers[name].neurons]) for name in ("0", "2"))
    slim = slim_model(model, graph, alive)
    rows = model[2].weight.detach().numpy()[second][:, first].reshape(len(second), -1)
    weight = (rows - rows.mean(1, keepdims=True)) / deviation(rows)[:, None]
    (x,) = floats((2, len(first), 4, 4, 4))()
    expected = torch.einsum("ncdhw,oc->nodhw", x, torch.from_numpy(weight))
    expected += slim[2].bias[:, None, None, None]
    assert torch.allclose(slim[2](x), expected, atol=1e-12)
    assert (slim[2].in_channels, slim[2].out_channels) == (len(first), len(second))


def test_a_slim_convnext_trains_and_comes_back_from_its_plan(tmp_path) -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(VOLUME), torch.randint(2, (2, 2, 2, 2))) for _ in range(2)]
    result = ranp.prune(convnext(), batches, F.cross_entropy, sparsity=0.5, seed=0)
    slim = result.model
    width = slim[0].out_channels
    assert width < 8 and slim[1].normalized_shape == slim[2].norm.normalized_shape == (width,)
    assert slim[2].response.gamma.shape[-1] == slim[2].expand.out_features < 16

    optimizer = torch.optim.Adam(slim.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        loss = sum(F.cross_entropy(slim(x), y) for x, y in batches)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]

    result.plan.save(tmp_path / "plan.json")
    again = ranp.Plan.load(tmp_path / "plan.json").apply(convnext())
    again.load_state_dict(copy.deepcopy(slim.state_dict()))
    x, _ = batches[0]
    assert torch.equal(again.eval()(x), slim.eval()(x))


class SpatialAttention(nn.Module):
    """The second half of CBAM."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        features = [x.mean(1, keepdim=True), x.amax(1, keepdim=True)]
        return x * torch.sigmoid(self.conv(torch.cat(features, 1)))


class MeanAttention(SpatialAttention):
    """Attention by the mean alone."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        return x * torch.sigmoid(self.conv(mean.expand(-1, 2, -1, -1, -1)))


class NeighbourAttention(nn.Module):
    """ECA."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.conv(x.mean((2, 3, 4)).unsqueeze(1)).squeeze(1)
        return x * torch.sigmoid(gate)[:, :, None, None, None]


@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        (SpatialAttention, "amax is taken over it in '1'"),
        (MeanAttention, "mean is taken over it in '1'"),
        (NeighbourAttention, "a convolution runs along it in '1.conv'"),
    ],
)
def test_attention_over_channels_says_why_they_stay(attention: type, reason: str) -> None:
    graph = build_graph(network(attention()), VOLUME)
    assert {graph.pinned.get(c) for c in graph.layers["0"].neurons.tolist()} == {reason}
    assert graph.removable[graph.layers["2"].neurons].all()


def test_a_mean_that_is_an_output_keeps_its_channels() -> None:
    class Means(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = NextBlock(8)
            self.stem = nn.Conv3d(3, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.block(self.stem(x)).mean(1)

    graph = build_graph(Means(), VOLUME)
    reasons = {graph.pinned.get(c) for c in graph.layers["stem"].neurons.tolist()}
    assert reasons == {"mean is taken over it in the network's own forward"}
    assert graph.removable[graph.layers["block.expand"].neurons].all()
