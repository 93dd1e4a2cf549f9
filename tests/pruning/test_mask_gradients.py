"""Eq. 2 and Prop. 1, against autograd with masks that really are there."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize

from tests.pruning.nets import cross_entropy, score, serving, traced
from tests.zoo.case import Net


def old_weight_norm(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


PLAIN = {
    "conv 1d": (lambda: nn.Conv1d(4, 6, 3, bias=False), (4, 9)),
    "conv 2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, bias=False), (4, 5, 5)),
    "conv 3d with stride": (lambda: nn.Conv3d(4, 6, 3, stride=2, bias=False), (4, 5, 5, 5)),
    "linear": (lambda: nn.Linear(4, 6, bias=False), (4,)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), (4, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, bias=False), (4, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 2, stride=2, bias=False), (4, 3, 3)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(4, 6, 2, stride=2, bias=False), (4, 2, 2, 2)),
    "grouped transposed": (lambda: nn.ConvTranspose1d(4, 6, 2, groups=2, bias=False), (4, 5)),
    "with bias": (lambda: nn.Conv2d(4, 6, 3), (4, 5, 5)),
}
COMPUTED = {
    "weight norm": (
        lambda: parametrizations.weight_norm(nn.Conv2d(4, 6, 3, bias=False)),
        (4, 5, 5),
    ),
    "old weight norm": (lambda: old_weight_norm(nn.Conv2d(4, 6, 3, bias=False)), (4, 5, 5)),
    "transposed weight norm": (
        lambda: parametrizations.weight_norm(nn.ConvTranspose1d(4, 6, 2, bias=False), dim=1),
        (4, 5),
    ),
    "linear weight norm": (
        lambda: parametrizations.weight_norm(nn.Linear(4, 6, bias=False)),
        (4,),
    ),
}


def network(layer, *, calls: int = 1):
    """The layer, ReLU, mean over space, classes."""

    def run(net, x):
        y = sum(F.relu(net.layer(x + i)) for i in range(calls))
        return net.head(y.flatten(2).mean(2) if y.dim() > 2 else y)

    outputs = getattr(layer, "out_channels", None) or layer.out_features
    return Net(run, layer=layer, head=nn.Linear(outputs, 3)).double()


def batches(shape, count, seed):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(5, *shape, generator=generator, dtype=torch.float64),
            torch.randint(3, (5,), generator=generator),
        )
        for _ in range(count)
    ]


def plain_copy(model):
    """The same network with all weights as parameters."""
    for module in model.modules():
        if hasattr(module, "weight_g"):  # cannot be copied while it belongs to an autograd graph
            module.weight = module.weight.detach()
    model = copy.deepcopy(model)
    for module in model.modules():
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
        elif hasattr(module, "weight_g"):
            nn.utils.remove_weight_norm(module)
    return model


def parameter_mask_gradients(model, batch, name="layer.weight"):
    """dL(c * w)/dc at c = 1, by autograd."""
    weights = {n: p.detach() for n, p in model.named_parameters()}
    c = torch.ones_like(weights[name], requires_grad=True)
    output = functional_call(model, {**weights, name: weights[name] * c}, (batch[0],))
    return torch.autograd.grad(F.cross_entropy(output, batch[1]), c)[0]


def neuron_mask_gradient(model, batch):
    """dL/dc with a mask on the layer's pre-activations, by autograd."""
    width = model.head.in_features
    c = torch.ones(width, dtype=torch.float64, requires_grad=True)

    def mask(module, inputs, output):
        return output * (c.view(-1, *(1,) * (output.dim() - 2)) if output.dim() > 2 else c)

    handle = model.layer.register_forward_hook(mask)
    loss = F.cross_entropy(model(batch[0]), batch[1])
    handle.remove()
    return torch.autograd.grad(loss, c)[0]


def rows(gradient, layer):
    """A row per neuron, by a loop over what the documentation of each layer says."""
    if not getattr(layer, "transposed", False):
        return gradient.flatten(1)
    result = []
    per_group_in = gradient.shape[0] // layer.groups
    for group in range(layer.groups):
        for output in range(gradient.shape[1]):
            block = gradient[group * per_group_in : (group + 1) * per_group_in, output]
            result.append(block.flatten())
    return torch.stack(result)


@pytest.mark.parametrize("kind", [*PLAIN, *COMPUTED])
@settings(max_examples=3)
@given(seed=st.integers(0, 2**16))
def test_neuron_mask_gradient_is_the_sum_of_parameter_mask_gradients(kind, seed):
    build, shape = {**PLAIN, **COMPUTED}[kind]
    torch.manual_seed(seed)
    model = network(build())
    data = batches(shape, 2, seed)
    scores = score(
        model,
        traced(model, *data[0][0].shape),
        data,
        cross_entropy,
        methods=serving("abs", "signed"),
        weights="given",
    )
    reference = plain_copy(model)
    g = [rows(parameter_mask_gradients(reference, batch), reference.layer) for batch in data]
    close = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(
        scores.sums["mpmg"]["layer"], sum(x.abs().sum(1) for x in g), **close
    )
    torch.testing.assert_close(scores.weight_sums["abs"]["layer"], sum(x.abs() for x in g), **close)
    torch.testing.assert_close(scores.weight_sums["signed"]["layer"], sum(g), **close)
    torch.testing.assert_close(scores.sums["mnmg"]["layer"], sum(x.sum(1) for x in g), **close)
    assert scores.fan_in["layer"] == g[0].shape[1]
    if kind != "with bias":  # Prop. 1: a mask on a neuron with a bias also masks the bias
        neuron = sum(neuron_mask_gradient(reference, batch) for batch in data)
        torch.testing.assert_close(scores.sums["mnmg"]["layer"], neuron, **close)


@pytest.mark.parametrize("kind", ["conv 2d", "weight norm", "old weight norm"])
def test_a_layer_called_twice_has_one_mask(kind):
    build, shape = {**PLAIN, **COMPUTED}[kind]
    torch.manual_seed(3)
    model = network(build(), calls=2)
    data = batches(shape, 1, 3)
    scores = score(model, traced(model, *data[0][0].shape), data, cross_entropy, weights="given")
    reference = plain_copy(model)
    g = parameter_mask_gradients(reference, data[0]).flatten(1)
    torch.testing.assert_close(scores.sums["mpmg"]["layer"], g.abs().sum(1))
    torch.testing.assert_close(scores.sums["mnmg"]["layer"], g.sum(1))


def test_tied_weights_share_their_gradient():
    torch.manual_seed(0)
    model = Net(
        lambda net, x: net.c(F.relu(net.b(F.relu(net.a(x))))),
        a=nn.Linear(4, 4, bias=False), b=nn.Linear(4, 4, bias=False), c=nn.Linear(4, 3),
    ).double()  # fmt: skip
    model.b.weight = model.a.weight
    data = batches((4,), 1, 0)
    scores = score(model, traced(model, 5, 4), data, cross_entropy, weights="given")
    w = model.a.weight.detach().clone().requires_grad_()
    x, y = data[0]
    hidden = F.relu(F.relu(x @ w.T) @ w.T)
    loss = F.cross_entropy(hidden @ model.c.weight.T + model.c.bias, y)
    g = torch.autograd.grad(loss, w)[0] * w.detach()
    for name in "ab":
        torch.testing.assert_close(scores.sums["mpmg"][name], g.abs().sum(1))


def test_a_raw_transposed_weight_has_its_neurons_in_columns():
    torch.manual_seed(0)
    model = Net(
        lambda net, x: net.head(F.relu(F.conv_transpose1d(x, net.kernel)).mean(2)),
        kernel=nn.Parameter(torch.randn(4, 4, 2)), head=nn.Linear(4, 3),
    ).double()  # fmt: skip
    data = batches((4, 5), 1, 0)
    scores = score(model, traced(model, 5, 4, 5), data, cross_entropy, weights="given")
    g = parameter_mask_gradients(model, data[0], "kernel")
    torch.testing.assert_close(scores.sums["mpmg"]["kernel"], g.abs().sum((0, 2)))


def test_magnitudes_are_taken_in_every_batch_and_signs_survive_averaging():
    """Two batches with opposite gradients: MPMG adds them up, MNMG cancels them."""
    torch.manual_seed(0)
    model = network(nn.Linear(4, 6, bias=False))
    batch = batches((4,), 1, 0)[0]
    graph = traced(model, 5, 4)

    def forward(model, signed_batch):
        sign, (x, y) = signed_batch
        return sign * F.cross_entropy(model(x), y)

    once = score(model, graph, [(1.0, batch)], forward, weights="given")
    both = score(model, graph, [(1.0, batch), (-1.0, batch)], forward, weights="given")
    torch.testing.assert_close(both.sums["mpmg"]["layer"], 2 * once.sums["mpmg"]["layer"])
    assert once.sums["mnmg"]["layer"].abs().min() > 0
    torch.testing.assert_close(both.sums["mnmg"]["layer"], torch.zeros(6, dtype=torch.float64))


def test_half_precision_is_summed_in_single():
    torch.manual_seed(0)
    model = network(nn.Linear(4, 6, bias=False)).bfloat16()
    data = [(x.bfloat16(), y) for x, y in batches((4,), 2, 0)]
    scores = score(
        model, traced(model, 5, 4), data, cross_entropy, methods=serving("abs"), weights="given"
    )
    assert scores.sums["mpmg"]["layer"].dtype == torch.float64
    assert scores.weight_sums["abs"]["layer"].dtype == torch.float32
    g = [parameter_mask_gradients(model, batch).float() for batch in data]
    expected = sum(x.abs().sum(1, dtype=torch.float64) for x in g)
    torch.testing.assert_close(scores.sums["mpmg"]["layer"], expected, rtol=0.03, atol=1e-3)


def test_products_of_half_precision_do_not_underflow():
    """A gradient and a weight of 1e-4 each: their product is nothing in half precision."""
    model = network(nn.Linear(4, 6, bias=False)).half()
    with torch.no_grad():
        model.layer.weight.fill_(1e-4)
    data = [torch.full((1, 4), 1e-4).half()]
    scores = score(
        model, traced(model, 1, 4), data, lambda net, x: net.layer(x).sum(), weights="given"
    )
    expected = 4 * float(torch.tensor(1e-4).half()) ** 2
    torch.testing.assert_close(
        scores.sums["mpmg"]["layer"], torch.full((6,), expected).double(), rtol=1e-5, atol=0
    )
