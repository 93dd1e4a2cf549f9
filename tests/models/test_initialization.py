"""Weights have the promised distribution; everything else about the network stays as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from ranp.errors import UsageError
from ranp.models import UNet3D, glorot_normal_, orthogonal_

INITIALIZERS = pytest.mark.parametrize("initialize", [glorot_normal_, orthogonal_])

# Each layer with the sum of its fans, worked out by hand: channels times kernel volume. Grouped
# convolutions see in_channels / groups and give out_channels, as PyTorch counts them.
LAYERS = {
    "linear": (nn.Linear(200, 100), 200 + 100),
    "conv1d": (nn.Conv1d(40, 60, 5), (40 + 60) * 5),
    "conv2d": (nn.Conv2d(30, 50, (3, 5)), (30 + 50) * 15),
    "conv3d": (nn.Conv3d(16, 32, 3), (16 + 32) * 27),
    "conv3d 1x1x1": (nn.Conv3d(128, 96, 1), 128 + 96),
    "grouped conv3d": (nn.Conv3d(32, 64, 3, groups=4), (8 + 64) * 27),
    "depthwise conv3d": (nn.Conv3d(400, 400, 3, groups=400), (1 + 400) * 27),
    "transposed conv1d": (nn.ConvTranspose1d(60, 40, 5), (40 + 60) * 5),
    "transposed conv2d": (nn.ConvTranspose2d(30, 50, 4), (30 + 50) * 16),
    "transposed conv3d": (nn.ConvTranspose3d(24, 32, 3), (24 + 32) * 27),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_glorot_normal_has_its_variance_and_shape(kind: str) -> None:
    layer, fans = LAYERS[kind]
    layer = copy.deepcopy(layer)
    glorot_normal_(layer, generator=torch.Generator().manual_seed(1))
    weight = layer.weight.detach().double().flatten()
    n = weight.numel()
    variance = 2 / fans
    # Five standard errors of each estimate under normality.
    assert abs(weight.mean()) < 5 * (variance / n) ** 0.5
    assert weight.var().item() == pytest.approx(variance, rel=5 * (2 / n) ** 0.5)
    kurtosis = (weight**4).mean() / (weight**2).mean() ** 2
    assert kurtosis.item() == pytest.approx(3, abs=5 * (24 / n) ** 0.5)  # 1.8 if uniform
    assert not layer.bias.any()


@pytest.mark.parametrize("kind", LAYERS)
def test_orthogonal_weights_are_orthogonal(kind: str) -> None:
    layer = copy.deepcopy(LAYERS[kind][0]).double()
    orthogonal_(layer, generator=torch.Generator().manual_seed(1))
    matrix = layer.weight.detach().flatten(start_dim=1)
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    torch.testing.assert_close(gram, torch.eye(len(gram), dtype=gram.dtype), rtol=0, atol=1e-12)
    assert not layer.bias.any()


@INITIALIZERS
@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_batch_norm_gamma_is_uniform_by_default(initialize, norm) -> None:
    layer = norm(4000)
    used(layer)
    initialize(layer, generator=torch.Generator().manual_seed(2))
    gamma = layer.weight.detach()
    assert gamma.min() >= 0
    assert gamma.max() <= 1
    assert gamma.mean().item() == pytest.approx(0.5, abs=5 * (1 / 12 / 4000) ** 0.5)
    assert gamma.var().item() == pytest.approx(1 / 12, rel=0.05)
    assert_otherwise_new(layer)


@INITIALIZERS
def test_batch_norm_gamma_of_ones(initialize) -> None:
    layer = nn.BatchNorm3d(7)
    used(layer)
    initialize(layer, gamma="ones")
    assert torch.equal(layer.weight, torch.ones(7))
    assert_otherwise_new(layer)


def used(norm: nn.Module) -> None:
    """Leaves the traces of a training run in a batch norm."""
    for tensor in (*norm.parameters(), *norm.buffers()):
        tensor.data.fill_(5)


def assert_otherwise_new(norm: nn.Module) -> None:
    assert not norm.bias.any()
    assert not norm.running_mean.any()
    assert torch.equal(norm.running_var, torch.ones_like(norm.running_var))
    assert norm.num_batches_tracked == 0


@pytest.mark.parametrize("gamma", ["uniform", "ones"])
def test_batch_norm_without_parameters_or_statistics(gamma) -> None:
    bare = nn.BatchNorm3d(3, affine=False, track_running_stats=False)
    glorot_normal_(nn.Sequential(nn.Conv3d(1, 3, 1), bare), gamma=gamma)
    assert not list(bare.parameters())
    assert not list(bare.buffers())


@INITIALIZERS
@pytest.mark.parametrize(
    "norm",
    [
        nn.GroupNorm(2, 6),
        nn.LayerNorm(6),
        nn.RMSNorm(6),
        nn.InstanceNorm3d(6, affine=True, track_running_stats=True),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_other_norms_become_the_identity(initialize, norm) -> None:
    used(norm)
    initialize(norm)
    assert torch.equal(norm.weight, torch.ones(6))
    assert getattr(norm, "bias", None) is None or not norm.bias.any()
    assert getattr(norm, "running_mean", None) is None or not norm.running_mean.any()


def test_modules_of_other_kinds_keep_their_parameters() -> None:
    model = nn.Sequential(nn.PReLU(3, init=0.7), nn.Embedding(4, 2))
    before = copy.deepcopy(model.state_dict())
    glorot_normal_(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@INITIALIZERS
def test_shared_parameters_stay_shared_and_frozen_ones_frozen(initialize) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    model[2].weight.requires_grad_(False)
    model.eval()
    identities = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    frozen = {name: p.requires_grad for name, p in model.named_parameters()}
    before = model[0].weight.detach().clone()
    initialize(model)
    assert identities == {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)}
    assert frozen == {name: p.requires_grad for name, p in model.named_parameters()}
    assert all(p.is_leaf and p.grad_fn is None for p in model.parameters())
    assert not model.training
    assert not torch.equal(before, model[0].weight)


@INITIALIZERS
def test_a_generator_decides_everything_and_the_global_one_is_left_alone(initialize) -> None:
    models = [UNet3D(1, 2, levels=2, base_width=4) for _ in range(3)]
    state = torch.get_rng_state()
    for model, seed in zip(models, (7, 7, 8), strict=True):
        initialize(model, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(state, torch.get_rng_state())
    first, same, other = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], same[name]) for name in first)
    drawn = [name for name in first if not torch.equal(first[name], other[name])]
    assert drawn == [name for name in first if name.endswith("weight")]


@INITIALIZERS
def test_without_a_generator_the_global_one_is_used(initialize) -> None:
    weights = []
    for _ in range(2):
        layer = nn.Conv3d(2, 3, 3)
        torch.manual_seed(3)
        initialize(layer)
        weights.append(layer.weight.detach())
    assert torch.equal(*weights)


@INITIALIZERS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gets_the_rounded_weights(initialize, dtype) -> None:
    model = nn.Sequential(nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8))
    half = copy.deepcopy(model).to(dtype)
    for network in (model, half):
        initialize(network, generator=torch.Generator().manual_seed(4))
    for full, rounded in zip(model.parameters(), half.parameters(), strict=True):
        assert torch.equal(full.to(dtype), rounded)


@INITIALIZERS
def test_meta_tensors_are_left_to_their_own(initialize) -> None:
    with torch.device("meta"):
        model = UNet3D(1, 2, levels=2, base_width=4)
    initialize(model, generator=torch.Generator())
    assert all(parameter.is_meta for parameter in model.parameters())


def expected_weight(seed: int) -> torch.Tensor:
    plain = nn.Conv3d(3, 8, 3)
    glorot_normal_(plain, generator=torch.Generator().manual_seed(seed))
    return plain.weight.detach()


def test_weight_norm_gives_the_drawn_weight() -> None:
    layer = parametrizations.weight_norm(nn.Conv3d(3, 8, 3))
    parameters = {name: id(parameter) for name, parameter in layer.named_parameters()}
    glorot_normal_(layer, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(layer.weight, expected_weight(5))
    assert parameters == {name: id(parameter) for name, parameter in layer.named_parameters()}


def test_spectral_norm_gets_the_drawn_weight() -> None:
    layer = parametrizations.spectral_norm(nn.Conv3d(3, 8, 3))
    glorot_normal_(layer, generator=torch.Generator().manual_seed(5))
    assert torch.equal(layer.parametrizations.weight.original, expected_weight(5))


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_by_hook_gives_the_drawn_weight(dim) -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        layer = nn.utils.weight_norm(nn.Conv3d(3, 8, 3), dim=dim)
    glorot_normal_(layer, generator=torch.Generator().manual_seed(5))
    layer(torch.zeros(1, 3, 3, 3, 3))  # the hook computes the weight before each forward
    torch.testing.assert_close(layer.weight, expected_weight(5))


def test_spectral_norm_by_hook_gets_the_drawn_weight() -> None:
    layer = nn.utils.spectral_norm(nn.Conv3d(3, 8, 3))
    glorot_normal_(layer, generator=torch.Generator().manual_seed(5))
    assert torch.equal(layer.weight_orig, expected_weight(5))


class _OneWay(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.abs()


def test_parametrization_that_cannot_be_inverted_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    parametrize.register_parametrization(model[0], "weight", _OneWay())
    with pytest.raises(UsageError, match=r"^cannot initialise '0': .* no right_inverse; remove it"):
        glorot_normal_(model)


def test_weight_of_unknown_origin_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    del model[0].weight
    model[0].weight = torch.zeros(2, 2)
    with pytest.raises(UsageError, match=r"^cannot initialise '0': its weight is not a parameter"):
        glorot_normal_(model)


def test_unknown_gamma_is_refused_before_anything_changes() -> None:
    layer = nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    with pytest.raises(UsageError, match=r"^gamma must be one of 'uniform', 'ones', got 'one'$"):
        glorot_normal_(layer, gamma="one")  # type: ignore[arg-type]
    assert torch.equal(before, layer.weight)
