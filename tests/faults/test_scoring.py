"""Rows 29, 30, 34 and 39: what cannot be scored is refused, and scoring leaves no trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

import ranp
from ranp.errors import IntegrityError, UsageError
from tests.pruning.nets import given_back

SHAPE = (2, 1, 4, 4, 4)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 2, 1))


def dead() -> nn.Sequential:
    model = network()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(-1)
    return model


def batch(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (2, 4, 4, 4), generator=generator)
    return torch.randn(SHAPE, generator=generator), labels


def prune(model=None, loader=None, loss=nn.functional.cross_entropy, **options):
    loader = [batch()] if loader is None else loader
    return ranp.prune(model or network(), loader, loss, sparsity=0.25, **options)


def summed(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")


X, Y = batch()
IGNORED = torch.full_like(Y, -100)
NO_SIGNAL = {
    "labels that are all ignored": ((X, IGNORED), {}, "the loss is nan in batch 2"),
    "ignored labels, summed": ((X, IGNORED), {"loss": summed}, "batch 2 gives no signal"),
    "no samples": ((X[:0], Y[:0]), {}, "the loss is nan in batch 2"),
    "no samples, one by one": ((X[:0], Y[:0]), {"per": "sample"}, "batch 2"),
    "no samples, summed": ((X[:0], Y[:0]), {"loss": summed}, "batch 2 gives no signal"),
    "huge inputs": ((X * 1e38, Y), {}, "in batch 2"),
}


@pytest.mark.parametrize("method", ["ranp-f", "snip", "grasp"])
@pytest.mark.parametrize("case", NO_SIGNAL)
def test_row_34_a_batch_without_a_signal_is_refused_by_number(case, method):
    bad, options, expected = NO_SIGNAL[case]
    with pytest.raises(IntegrityError, match=expected):
        prune(loader=[batch(), bad], method=method, **options)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_row_34_a_dead_network_and_a_constant_loss_are_refused_by_layer(scale):
    model = dead() if scale else network()
    with pytest.raises(
        IntegrityError, match=r"batch 1 gives no signal: .* \('0'\) are zero; check"
    ):
        prune(model, loss=lambda o, y: summed(o, y) * scale, weights="given", floor=1)


def inference(make):
    with torch.inference_mode():
        return make()


REFUSED = {
    "model": ({"model": [1]}, "model must be an nn.Module, got list"),
    "class": ({"model": nn.Conv3d}, "model must be an nn.Module, got the class Conv3d"),
    "meta": ({"model": network().to("meta")}, "'0.weight' is on the meta device.*to_empty"),
    "inference": ({"model": inference(network)}, "'0.weight' was made in torch.inference_mode"),
    "loss": ({"loss": 3}, r"loss must be a function loss\(output, target\), got int"),
    "loss class": ({"loss": nn.CrossEntropyLoss}, r"got the class .*; make an instance: CrossEnt"),
    "forward": ({"forward": 3, "loss": None}, r"forward must be a function .*, got int"),
    "loader": ({"loader": 3}, "loader must yield batches, got int"),
    "channels": (
        {"loader": [batch(), (X.repeat(1, 3, 1, 1, 1), Y)]},
        r"expected input.* 1 channels, but got 3.*given \(2, 3, 4, 4, 4\) float32 as input",
    ),
    "target": ({"loader": [(X, Y[:, 1:])]}, r"fails: .*\(2, 3, 4, 4\) int64 as target"),
    "target type": ({"loader": [(X, Y.float())]}, r"fails: .*\(2, 4, 4, 4\) float32 as target"),
    "sparse": ({"loader": [(X.to_sparse(), Y)]}, r"must be dense, got .*sparse_coo.*to_dense\(\)"),
    "sparse target": ({"loader": [(X, Y.to_sparse())]}, r"must be dense, .*call to_dense\(\)"),
    "complex loss": ({"loss": lambda o, y: summed(o, y) * 1j}, "loss must be real, got .*complex"),
    "no batch": ({"loader": [None]}, "a batch must be data, got None"),
    "meta batch": ({"loader": [(X.to("meta"), Y)]}, "a batch is on the meta device"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_row_30_wrong_arguments_are_refused_in_one_line(case):
    arguments, expected = REFUSED[case]
    with pytest.raises(UsageError, match=expected) as error:
        prune(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("run", [ranp.prune, ranp.fit])
def test_row_30_a_class_is_no_model_whatever_is_asked_for(run):
    with pytest.raises(UsageError, match="got the class Conv3d; give an instance"):
        run(nn.Conv3d, [batch()], nn.functional.cross_entropy, flops="50%")


def test_row_30_no_loader():
    with pytest.raises(UsageError, match="ranp-f scores with data; give a loader"):
        ranp.prune(network(), sparsity=0.5)


def test_row_29_batches_made_in_inference_mode_are_scored():
    with torch.inference_mode():
        x = X.clone()
    assert prune(loader=[(x, Y)]).plan == prune(loader=[(X, Y)]).plan


@pytest.mark.parametrize("weights", ["fresh", "given"])
@pytest.mark.parametrize("method", ["ranp-f", "ranp-l", "synflow", "grasp", "snip"])
def test_row_39_scoring_leaves_no_trace(method, weights):
    torch.manual_seed(0)
    model = nn.Sequential(
        spectral_norm(nn.Conv3d(1, 4, 3, padding=1)),
        nn.BatchNorm3d(4).eval(),
        nn.Dropout(),
        spectral_norm(nn.Conv3d(4, 2, 1)),
    )
    loader = DataLoader(TensorDataset(X, Y), 2, shuffle=True)
    before = torch.get_rng_state()
    with given_back(model):
        prune(model, loader, method=method, weights=weights)
    assert torch.equal(torch.get_rng_state(), before)
