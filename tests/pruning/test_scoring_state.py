"""A scored model is given back as it was, whatever happens in between."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ranp
from ranp.errors import UsageError
from tests.pruning.nets import (
    classifier,
    cross_entropy,
    given_back,
    pictures,
    score,
    serving,
    traced,
)


def awkward():
    """Batch norm, dropout, a frozen layer, an eval-mode layer, gradients from before."""
    model = nn.Sequential(*classifier(norm=True), nn.Dropout(0.5), nn.Linear(3, 3)).double()
    model.train()
    model[1].eval()
    for parameter in model[3].parameters():
        parameter.requires_grad_(False)
    F.cross_entropy(model(torch.randn(4, 2, 8, 8).double()), torch.zeros(4).long()).backward()
    return model


class Trouble(Exception):
    pass


@pytest.mark.parametrize("weights", ["fresh", "orthogonal", "given"])
@pytest.mark.parametrize("trouble", [None, Trouble, KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_everything_is_set_back(weights, trouble, where):
    model = awkward()
    graph = traced(model, 4, 2, 8, 8)
    random_state = torch.get_rng_state()

    def forward(model, batch):
        number, (x, y) = batch
        output = model(x)
        if number == 1 and trouble is not None:
            if where == "forward":
                raise trouble("in the middle")
            output.register_hook(lambda _: (_ for _ in ()).throw(trouble("in the middle")))
        return F.cross_entropy(output, y)

    with given_back(model):
        try:
            score(
                model, graph, enumerate(pictures(3)), forward,
                methods=serving("abs", "signed", "synflow"), weights=weights,
            )  # fmt: skip
            assert trouble is None
        except (Trouble, KeyboardInterrupt, RuntimeError) as error:
            assert type(error) is trouble, error
    assert torch.equal(random_state, torch.get_rng_state())


@pytest.mark.parametrize("style", ["parametrization", "hook"])
def test_normed_weights_are_set_back(style):
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 6, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        norm = {
            "parametrization": nn.utils.parametrizations.weight_norm,
            "hook": nn.utils.weight_norm,
        }[style]
        layer = norm(layer)
    model = nn.Sequential(layer, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    graph = traced(model.double(), 4, 2, 8, 8)
    weight = layer.weight.detach().clone()
    with given_back(model):
        score(model, graph, pictures(2), cross_entropy, weights="fresh")
    assert torch.equal(layer.weight.detach(), weight)


def test_frozen_layers_are_scored_all_the_same():
    model = classifier()
    graph = traced(model, 4, 2, 8, 8)
    free = score(model, graph, pictures(2), cross_entropy, weights="given")
    frozen = score(model.requires_grad_(False), graph, pictures(2), cross_entropy, weights="given")
    for name, values in free.sums["mpmg"].items():
        assert torch.equal(values, frozen.sums["mpmg"][name])


def test_train_mode_is_what_is_scored():
    model = classifier(norm=True).eval()
    graph = traced(model, 4, 2, 8, 8)
    seen = []
    hook = model[1].register_forward_hook(lambda module, *_: seen.append(module.training))
    score(model, graph, pictures(2), cross_entropy)
    hook.remove()
    assert seen == [True, True]


def test_fresh_weights_depend_on_the_seed_alone():
    first, second = classifier(norm=True), classifier(norm=True)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(3)
    graph = traced(first, 4, 2, 8, 8)

    def sums(model, **options):
        return score(model, graph, pictures(2), cross_entropy, **options).sums["mpmg"]["3"]

    assert torch.equal(sums(first), sums(second))
    assert not torch.equal(sums(first), sums(first, seed=1))
    assert not torch.equal(sums(first), sums(first, weights="orthogonal"))
    assert not torch.equal(sums(first, weights="given"), sums(second, weights="given"))


@pytest.mark.parametrize("weights", ["fresh", "orthogonal"])
def test_batch_norms_are_scored_with_gammas_from_0_to_1(weights):
    model = classifier(norm=True, width=200)
    graph = traced(model, 4, 2, 8, 8)
    seen = []
    hook = model[4].register_forward_hook(lambda module, *_: seen.append(module.weight.clone()))
    score(model, graph, pictures(1), cross_entropy, weights=weights)
    hook.remove()
    (gamma,) = seen
    assert gamma.min() >= 0 and gamma.max() < 1
    # Mean 1/2 and variance 1/12 of U(0, 1), within five standard errors of 400 draws.
    assert gamma.mean().item() == pytest.approx(1 / 2, abs=5 * (1 / 12 / 400) ** 0.5)
    assert gamma.var().item() == pytest.approx(1 / 12, abs=5 * (1 / 180 / 400) ** 0.5)


def test_dropout_depends_on_seed_and_batch_number_alone():
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(128, 9), nn.Dropout(0.5), nn.Linear(9, 3)
    ).double()
    graph = traced(model, 4, 2, 8, 8)
    data = pictures(5)

    def run(**options):
        return score(model, graph, data, cross_entropy, weights="given", **options)

    whole = run()
    torch.rand(7)
    assert torch.equal(run().sums["mpmg"]["1"], whole.sums["mpmg"]["1"])
    resumed = run(resume=run(batches=2))
    assert resumed.batches == 5
    torch.testing.assert_close(
        resumed.sums["mpmg"]["1"], whole.sums["mpmg"]["1"], rtol=1e-12, atol=0
    )


def test_unknown_weights_are_refused():
    model = classifier()
    with pytest.raises(UsageError, match=r"weights must be .* got 'new'"):
        score(model, traced(model, 4, 2, 8, 8), pictures(1), cross_entropy, weights="new")


class Remembering(nn.Module):
    """Keeps activations, counts, and puts new tensors in a buffer's place."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(2, 4, 3)
        self.head = nn.Linear(4, 3)
        self.last, self.kept, self.seen, self.by_name, self.calls = None, [], ["begin"], {"a": 1}, 0
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        x = self.layer(x).relu()
        self.last, self.kept = x, [x]
        self.seen.append(x)
        self.by_name["last"] = x
        self.calls += 1
        self.count = self.count + 1
        self.new = x
        return self.head(x.mean((2, 3)))


def test_what_a_forward_leaves_behind_is_taken_away():
    model = Remembering().double()
    graph = traced(model, 1, 2, 8, 8)
    before = model.count
    with given_back(model):
        score(model, graph, pictures(3), cross_entropy)
    assert (model.last, model.kept, model.seen, model.by_name, model.calls) == (
        None, [], ["begin"], {"a": 1}, 0,
    )  # fmt: skip
    assert model.count is before
    assert float(before) == 0
    assert not hasattr(model, "new")
    result = ranp.prune(model, pictures(3), F.cross_entropy, sparsity=0.5)
    assert result.model.layer.out_channels < 4


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_gradients_are_taken_whatever_is_switched_off_outside(without):
    model = classifier()
    graph = traced(model, 1, 2, 8, 8)
    data = pictures(2)
    expected = score(model, graph, data, cross_entropy)
    with without():
        found = score(model, graph, data, cross_entropy)
    for name, values in expected.sums["mpmg"].items():
        assert torch.equal(found.sums["mpmg"][name], values)
