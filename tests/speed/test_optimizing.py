"""`ranp.optimize`: the same network in all but speed."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ranp.speed.optimizing
from ranp.errors import UsageError
from ranp.models.mobilenetv2 import InvertedResidual
from ranp.models.unet3d import UNet3D
from ranp.resources.comparing import largest_difference
from ranp.resources.measuring import Timing
from ranp.resources.timing_cache import TimingCache
from ranp.speed import optimization_of, optimize


def unit(inputs, outputs, **options):
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, padding=1, **options), nn.BatchNorm3d(outputs), nn.ReLU(True)
    )


class Shared(nn.Module):
    """A convolution that is called twice, and one whose output goes two ways before its norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv3d(2, 2, 3, padding=1), nn.BatchNorm3d(2)
        self.fork, self.fork_norm = nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4)
        self.head = nn.Conv3d(8, 2, 1)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(F.relu(self.conv(x)))))
        fork = self.fork(x)
        return self.head(torch.cat([fork, F.elu(self.fork_norm(fork))], 1))


def monai_unet(**options):
    nets = importlib.import_module("monai.networks.nets")
    settings = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
    return nets.UNet(**settings, channels=(4, 8, 16), strides=(2, 2), **options)


NETWORKS = {
    "unet3d": (lambda: UNet3D(1, 3, levels=3, base_width=8), (1, 1, 8, 8, 8)),
    "unet3d, softmax": (
        lambda: UNet3D(2, 5, levels=2, base_width=8, softmax=True),
        (2, 2, 8, 8, 8),
    ),
    "softmax inside": (
        lambda: nn.Sequential(nn.Conv3d(1, 4, 3), nn.Softmax(1), nn.Conv3d(4, 2, 3)),
        (1, 1, 8, 8, 8),
    ),
    "unet3d, batch 2": (lambda: UNet3D(1, 3, levels=2, base_width=8), (2, 1, 8, 8, 8)),
    "depthwise": (
        lambda: nn.Sequential(
            InvertedResidual(4, 4, stride=1, expansion=3), InvertedResidual(4, 6, 2, 3)
        ),
        (2, 4, 6, 6, 6),
    ),
    "groups": (
        lambda: nn.Sequential(unit(2, 4), unit(4, 8, groups=2), nn.Conv3d(8, 2, 3, groups=2)),
        (1, 2, 6, 6, 6),
    ),
    "transposed": (
        lambda: nn.Sequential(unit(1, 4), nn.ConvTranspose3d(4, 4, 2, 2), nn.BatchNorm3d(4)),
        (2, 1, 4, 4, 4),
    ),
    "no norm, strides": (
        lambda: nn.Sequential(
            nn.Conv3d(1, 4, 3, stride=2, padding=1), nn.LeakyReLU(), nn.Conv3d(4, 3, (1, 3, 3))
        ),
        (1, 1, 8, 8, 8),
    ),
    "padding modes": (
        lambda: nn.Sequential(
            nn.Conv3d(1, 4, 3, padding="same"),
            nn.ELU(),
            nn.Conv3d(4, 2, 3, padding=1, padding_mode="circular"),
        ),
        (1, 1, 6, 6, 6),
    ),
    "softmax, padding in words": (
        lambda: nn.Sequential(unit(1, 4), nn.Conv3d(4, 3, 1, padding="same"), nn.Softmax(1)),
        (1, 1, 6, 6, 6),
    ),
    "shared and forked": (Shared, (1, 2, 6, 6, 6)),
    "monai unet": (monai_unet, (1, 1, 16, 16, 16)),
    "monai unet, batch norm": (
        lambda: monai_unet(norm="BATCH", act="GELU", num_res_units=2, dropout=0.2),
        (1, 1, 16, 16, 16),
    ),
    "two dimensions": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)),
        (1, 1, 8, 8),
    ),
}


@pytest.fixture
def changed_things_win(monkeypatch):
    """Every changed network counts as faster: what is kept must be equal, not fast."""

    def times(actions, *args, **kwargs):
        return {name: Timing((2.0 - i,)) for i, name in enumerate(actions)}

    monkeypatch.setattr(ranp.speed.optimizing, "time_in_turns", times)
    monkeypatch.setattr("ranp.speed.selection._WORTH", 10.0)
    monkeypatch.setattr("ranp.speed.selection.time_in_turns", times)


def train(model, x, steps=3):
    """Outputs of a few steps of SGD, and the weights after them."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    outputs = []
    for _ in range(steps):
        torch.manual_seed(3)
        optimizer.zero_grad()
        y = model(x)
        outputs.append(y.detach())
        y.square().mean().backward()
        optimizer.step()
    return outputs, dict(model.state_dict())


@pytest.mark.parametrize("name", NETWORKS)
def test_training_goes_the_same_way(name, changed_things_win, tmp_path):
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = build()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0  # draws numbers in the order of memory, so not the same ones
    x = torch.randn(shape)
    fast = optimize(model, x, "train", cache=TimingCache(tmp_path))
    record = optimization_of(fast)
    assert (record.kept == "as given") == (len(shape) == 4 or len(record.trials) == 1)
    assert list(fast.state_dict()) == list(model.state_dict())
    for tensor, other in zip(model.state_dict().values(), fast.state_dict().values(), strict=True):
        assert torch.equal(tensor, other) and tensor.data_ptr() != other.data_ptr()
    (plain_outputs, plain_state), (outputs, state) = train(model, x), train(fast, x)
    for expected, got in zip(plain_outputs, outputs, strict=True):
        assert largest_difference([got], [expected]) <= 1e-5
    for key, expected in plain_state.items():
        scale = max(expected.abs().max().item(), 1.0) if expected.is_floating_point() else 0
        torch.testing.assert_close(state[key], expected, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("name", NETWORKS)
def test_inference_gives_the_same(name, changed_things_win, tmp_path):
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = build().train()
    x = torch.randn(shape)
    with torch.no_grad():
        for _ in range(3):  # running statistics that are not those of a new network
            model(2 * x + 1)
    model.eval()
    expected = model(x)
    fast = optimize(model, x, "inference", cache=TimingCache(tmp_path))
    assert not fast.training
    assert largest_difference([fast(x)], [expected]) <= 1e-5
    assert fast(x).is_contiguous()


def test_norms_are_folded_but_where_the_result_would_differ(changed_things_win, tmp_path):
    torch.manual_seed(0)
    cache = TimingCache(tmp_path)
    fast = optimize(UNet3D(1, 3, levels=2, base_width=8), (1, 1, 8, 8, 8), "inference", cache=cache)
    assert len(optimization_of(fast).folded) == 6
    assert not any(isinstance(module, nn.BatchNorm3d) for module in fast.modules())
    forked = Shared()
    nn.init.normal_(forked.fork_norm.weight)
    record = optimization_of(optimize(forked, (1, 2, 6, 6, 6), "inference", cache=cache))
    assert record.kept == "as given"
    assert all(trial.deviation > 1e-2 for trial in record.trials[1:])


def test_what_is_not_faster_is_not_kept(monkeypatch, tmp_path):
    def times(actions, *args, **kwargs):
        return {name: Timing((1.0,)) for name in actions}

    monkeypatch.setattr(ranp.speed.optimizing, "time_in_turns", times)
    model = UNet3D(1, 3, levels=2, base_width=8)
    record = optimization_of(optimize(model, (1, 1, 8, 8, 8), cache=TimingCache(tmp_path)))
    assert record.kept == "as given" and record.speedup == 1.0 and len(record.trials) >= 2
    assert record.to_dict()["trials"][0]["name"] == "as given"


def test_the_given_network_is_not_changed(tmp_path):
    model = UNet3D(1, 3, levels=2, base_width=8).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    kinds = [type(module) for module in model.modules()]
    fast = optimize(model, (1, 1, 8, 8, 8), "train", cache=TimingCache(tmp_path))
    assert [type(module) for module in model.modules()] == kinds
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.training and not fast.training
    assert all(p.grad is None for p in fast.parameters())


def test_a_network_that_remembers_its_last_results_is_optimized(tmp_path):
    """As MONAI's DynUNet keeps its heads, after a training step."""
    model = UNet3D(1, 3, levels=2, base_width=8)
    x = torch.rand(1, 1, 8, 8, 8)
    model.heads = [model(x)]
    model.eval()
    with torch.no_grad():
        fast = optimize(model, x, "inference", cache=TimingCache(tmp_path))
        assert torch.allclose(fast(x), model(x), atol=1e-5)


def test_measured_times_are_kept_and_used_again(tmp_path, monkeypatch):
    # The other layout is tried, and measured, where this one happens not to be faster.
    monkeypatch.setattr(ranp.speed.optimizing, "LAYOUTS", ("channels-last",))
    model, cache = UNet3D(1, 3, levels=2, base_width=8), TimingCache(tmp_path)
    optimize(model, (1, 1, 8, 8, 8), cache=cache)
    assert list(cache.directory.glob("*.json"))

    def never(*args, **kwargs):
        raise AssertionError("measured again")

    monkeypatch.setattr("ranp.speed.selection.time_in_turns", never)
    optimize(model, (1, 1, 8, 8, 8), cache=cache)


def test_an_optimized_network_can_be_traced_and_pruned(changed_things_win, tmp_path):
    model = UNet3D(1, 3, levels=2, base_width=8)
    fast = optimize(model, (1, 1, 8, 8, 8), cache=TimingCache(tmp_path))
    plain = ranp.plan(model, sparsity=0.5, method="layerwise", example_input=(1, 1, 8, 8, 8))
    other = ranp.plan(fast, sparsity=0.5, method="layerwise", example_input=(1, 1, 8, 8, 8))
    assert plain.layers == other.layers


def test_the_allocator_is_changed_only_where_it_is_asked_for(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(ranp.speed.optimizing, "keep_freed_memory", lambda: asked.append(1) or True)
    model, cache = nn.Conv3d(1, 1, 1), TimingCache(tmp_path)
    said = {}
    for keep in (False, True):
        record = optimization_of(optimize(model, (1, 1, 2, 2, 2), keep_memory=keep, cache=cache))
        assert record.keeps_memory is keep and len(asked) == keep
        said[keep] = "the process keeps freed memory" in str(record)
    assert said == {False: False, True: True}


def test_errors_say_what_to_do():
    with pytest.raises(UsageError, match="mode must be one of 'train', 'inference', got 'test'"):
        optimize(nn.Conv3d(1, 1, 1), (1, 1, 2, 2, 2), "test")
    with pytest.raises(UsageError, match="networks of one tensor"):
        optimize(nn.Conv3d(1, 1, 1), [torch.zeros(1), torch.zeros(1)])
    with pytest.raises(UsageError, match=r"did not come out of ranp\.optimize"):
        optimization_of(nn.Conv3d(1, 1, 1))


@pytest.mark.parametrize("seed", range(3))
def test_training_is_as_near_to_exact_as_the_given_network(seed, changed_things_win, tmp_path):
    """Batch statistics and kinks multiply rounding errors; the ways taken here add none."""
    torch.manual_seed(seed)
    model = UNet3D(1, 5, levels=3, base_width=16)
    x = torch.randn(1, 1, 16, 16, 16)
    fast = optimize(model, x, "train", cache=TimingCache(tmp_path))
    assert optimization_of(fast).kept != "as given"

    def gradients(network, volume):
        network.train().zero_grad()
        network(volume).square().mean().backward()
        return torch.cat([p.grad.flatten().double() for p in network.parameters()])

    plain, rerouted = gradients(model, x), gradients(fast, x)
    exact = gradients(model.double(), x.double())
    allowed = max((plain - exact).norm().item(), 1e-5 * exact.norm().item())
    assert (rerouted - exact).norm().item() <= 2 * allowed


class Two(nn.Module):
    """Gives out its logits, or what it makes of them, beside their softmax."""

    def __init__(self, beside):
        super().__init__()
        self.conv, self.head, self.softmax = unit(1, 4), nn.Conv3d(4, 3, 1), nn.Softmax(1)
        self.beside = beside

    def forward(self, x):
        logits = self.head(self.conv(x))
        return self.beside(logits), self.softmax(logits)


@pytest.mark.parametrize(
    ("beside", "fused"), [(nn.Identity(), True), (nn.ReLU(), False), (lambda y: y > 0, False)]
)
def test_logits_that_are_given_out_too_stay_logits(beside, fused, changed_things_win, tmp_path):
    """Where a softmax cannot become part of its convolution, the rest is done all the same."""
    torch.manual_seed(0)
    model, x = Two(beside).eval(), torch.randn(1, 1, 6, 6, 6)
    fast = optimize(model, x, "inference", cache=TimingCache(tmp_path))
    record = optimization_of(fast)
    assert record.kept != "as given"
    assert all(trial.is_equal for trial in record.trials) is fused
    for got, expected in zip(fast(x), model(x), strict=True):
        assert torch.equal(got, expected) or largest_difference([got], [expected]) <= 1e-5


def test_a_norm_behind_an_activation_in_place_is_not_folded(changed_things_win, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv3d(1, 4, 3), nn.ReLU(True), nn.BatchNorm3d(4)),
        *(nn.Conv3d(4, 2, 3), nn.BatchNorm3d(2)),
    )
    record = optimization_of(
        optimize(model, (2, 1, 6, 6, 6), "inference", cache=TimingCache(tmp_path))
    )
    assert record.kept != "as given" and record.folded == ("4",)


def test_other_numbers_are_computed_as_given(tmp_path):
    model = UNet3D(1, 3, levels=2, base_width=4).double()
    fast = optimize(model, (1, 1, 8, 8, 8), cache=TimingCache(tmp_path))
    assert optimization_of(fast).kept == "as given"


def test_modes_and_random_numbers_stay_as_they_are(changed_things_win, tmp_path):
    model = UNet3D(1, 3, levels=2, base_width=4)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm3d)]
    norms[0].eval()  # frozen
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    fast = optimize(model, (1, 1, 8, 8, 8), cache=TimingCache(tmp_path))
    assert optimization_of(fast).kept != "as given"
    assert [module.training for module in fast.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)


def test_a_network_without_finite_numbers_is_refused():
    model = nn.Conv3d(1, 1, 1)
    nn.init.constant_(model.weight, float("nan"))
    with pytest.raises(UsageError, match="the Conv3d produces non-finite outputs"):
        optimize(model, (1, 1, 2, 2, 2))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_an_optimized_network_can_be_exported(changed_things_win, tmp_path):
    model = UNet3D(1, 3, levels=2, base_width=4).eval()
    fast = optimize(model, (2, 1, 8, 8, 8), cache=TimingCache(tmp_path))
    assert optimization_of(fast).kept != "as given"
    batches = {"x": {0: torch.export.Dim("batch", min=2, max=8)}}
    x = torch.randn(2, 1, 8, 8, 8)
    others = [
        torch.export.export(fast, (x,), dynamic_shapes=batches).module(),
        torch.jit.trace(fast, x),
    ]
    for other in others:
        assert largest_difference([other(x)], [model(x)]) <= 1e-5
    assert fast(x[:0]).shape == model(x[:0]).shape


@pytest.mark.parametrize(
    ("device", "channels", "words"),
    [("meta", 1, "holds no values"), ("cpu", 5, "the network, given the example input, fails")],
)
def test_row_30_what_cannot_be_run_is_refused_in_one_line(device, channels, words):
    with pytest.raises(UsageError, match=words) as error:
        optimize(nn.Conv3d(1, 2, 3, device=device), (1, channels, 6, 6, 6))
    assert "\n" not in str(error.value)
