"""Magnitude, SynFlow and GraSP: by hand, and against an explicit Hessian."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.functional import hessian
from torch.func import functional_call

from ranp.pruning import Choice, Chooser, make_forward
from tests.pruning.nets import (
    classifier,
    given_back,
    given_scores,
    pictures,
    score,
    serving,
    traced,
    two_layers,
)

squared = make_forward(lambda output, target: F.mse_loss(output, target), None)


def test_magnitude_by_hand():
    scores = score(two_layers(), traced(two_layers(), 1, 2), None, squared, weights="given")
    assert scores.batches == 0
    s = scores.average("magnitude")
    np.testing.assert_array_equal(s["a"], [2, 2.5, 2])
    np.testing.assert_array_equal(s["b"], [6, 2.5])


def test_magnitude_of_a_normed_weight_is_that_of_the_weight_itself():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3, bias=False))
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(3, 2)).double()
    s = score(model, traced(model, 1, 2), None, squared, weights="given").average("magnitude")
    np.testing.assert_allclose(s["0"], layer.weight.detach().abs().sum(1).numpy())


def test_synflow_by_hand():
    # |W_a| 1 = (2, 2.5, 2) = a; R = 1' |W_b| a; dR/da = (1.5, 3, 4).
    # Neurons of a: a_u dR/da_u; neurons of b: |W_b| a, row by row.
    model = two_layers()
    with given_back(model):
        scores = score(
            model, traced(model, 1, 2), None, squared, methods=serving("synflow"), weights="given"
        )
    s = scores.average("synflow")
    np.testing.assert_allclose(s["a"], [3, 7.5, 8])
    np.testing.assert_allclose(s["b"], [2 + 5 + 6, 1 + 2.5 + 2])


def test_synflow_is_conserved_from_layer_to_layer():
    """Without biases every layer passes on the same flow (Tanaka et al., theorem 1)."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3, bias=False), nn.ReLU(), nn.ConvTranspose2d(5, 4, 2, bias=False),
        nn.ReLU(), nn.Conv2d(4, 6, 1, bias=False), nn.MaxPool2d(2), nn.Conv2d(6, 3, 1, bias=False),
    ).double()  # fmt: skip
    graph = traced(model, 1, 2, 7, 7)
    s = score(model, graph, None, squared, methods=serving("synflow")).average("synflow")
    flows = [v.sum() for v in s.values()]
    np.testing.assert_allclose(flows, flows[0], rtol=1e-12)


def test_grasp_against_an_explicit_hessian():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False)
    ).double()
    data = [(torch.randn(5, 3).double(), torch.randn(5, 2).double()) for _ in range(2)]
    scores = given_scores(model, data, squared, "grasp")
    sizes = {name: p.shape for name, p in model.named_parameters()}
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])

    def loss_at(vector, batch):
        pieces = vector.split([shape.numel() for shape in sizes.values()])
        weights = {n: v.view(s) for (n, s), v in zip(sizes.items(), pieces, strict=True)}
        return F.mse_loss(functional_call(model, weights, (batch[0],)), batch[1])

    total = torch.zeros_like(theta)
    for batch in data:
        g = torch.func.grad(loss_at)(theta, batch)
        total += theta * (hessian(partial(loss_at, batch=batch), theta) @ g)
    first, second = total.split([12, 8])
    torch.testing.assert_close(scores.sums["grasp"]["0"], first.view(4, 3).sum(1))
    torch.testing.assert_close(scores.sums["grasp"]["2"], second.view(2, 4).sum(1))


def test_grasp_meets_the_same_random_numbers_in_both_passes():
    """With dropout the Hessian and the gradient are those of one and the same thinned network."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)).double()
    batch = (torch.randn(5, 3).double(), torch.randn(5, 2).double())
    scores = given_scores(model, [batch], squared, "grasp")
    mpmg = scores.sums["mpmg"]["0"]
    dropped = mpmg == 0  # with 5 samples, a neuron that no sample keeps is rare
    assert torch.equal(scores.sums["grasp"]["0"] == 0, dropped)


def test_rankings_follow_the_criteria():
    model = classifier()
    scores = given_scores(
        model, pictures(2), make_forward(F.cross_entropy, None), "grasp", "synflow"
    )
    graph = traced(model, 1, 2, 8, 8)
    for name in ("magnitude", "synflow", "grasp"):
        chooser = Chooser(model, graph, Choice.make(name), scores)
        for layer, values in scores.average(name).items():
            np.testing.assert_array_equal(chooser.importance[layer], values)
