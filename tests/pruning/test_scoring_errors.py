"""Bad input: one line that names the thing, the reason and the way out."""

from __future__ import annotations

from itertools import repeat

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ranp.errors import IntegrityError, UsageError
from ranp.pruning import distributed, make_forward
from tests.pruning.nets import classifier, cross_entropy, given_back, pictures, score, traced


def run(data, forward=cross_entropy, model=None, **options):
    model = model or classifier()
    return score(model, traced(model, 1, 2, 8, 8), data, forward, **options)


def test_an_empty_loader():
    with pytest.raises(UsageError, match="yields no batches"):
        run([])
    with pytest.raises(UsageError, match="yields no batches"):
        run(iter(()))


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return repeat((torch.ones(2), torch.tensor(1)))


@pytest.mark.parametrize(
    "loader",
    [
        lambda: repeat((torch.ones(1, 2), torch.tensor([1]))),
        lambda: torch.utils.data.DataLoader(Endless(), 1),
    ],
)
def test_a_loader_that_never_ends_is_stopped(loader, monkeypatch):
    monkeypatch.setattr(distributed, "MOST_UNSIZED_BATCHES", 20)
    model = nn.Linear(2, 2)
    graph = traced(model, 1, 2)
    with pytest.warns(UserWarning, match="stopped after 20 batches; give batches="):
        assert score(model, graph, loader(), cross_entropy).batches == 20
    assert score(model, graph, loader(), cross_entropy, batches=3).batches == 3


@pytest.mark.parametrize("batches", [0, -3])
def test_no_batches_asked_for(batches):
    with pytest.raises(UsageError, match=f"batches must be a positive integer, got {batches}"):
        run(pictures(1), batches=batches)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda o, y: F.cross_entropy(o, y, reduction="none"), r"shape \(4,\); expected a scalar"),
        (lambda o, y: 0.7, "the loss is a float"),
        (lambda o, y: None, "the loss is a NoneType"),
        (lambda o, y: F.cross_entropy(o.detach(), y), "detached"),
    ],
)
def test_a_loss_that_backward_cannot_start_from(loss, message):
    model = classifier()
    with given_back(model), pytest.raises(UsageError, match=message):
        run(pictures(1), make_forward(loss, None), model)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(4, 2, 8, 8), "a batch is a Tensor; expected a pair"),
        ((1, 2, 3), "a batch is a tuple of length 3"),
        ({"pixels": 1, "names": 2}, "keys 'pixels', 'names'; expected 'x' and 'y' or"),
    ],
)
def test_a_batch_of_the_wrong_structure(batch, message):
    with pytest.raises(UsageError, match=message):
        run([batch])


def test_neither_loss_nor_forward():
    with pytest.raises(UsageError, match="give a loss"):
        make_forward(None, None)


@pytest.mark.parametrize(
    "keys",
    [
        ("x", "y"),
        ("image", "label"),
        ("input", "target"),
        ("inputs", "targets"),
        ("data", "target"),
    ],
)
def test_mappings_with_usual_names_are_understood(keys):
    pairs = pictures(2)
    mapped = [{**dict(zip(keys, pair, strict=True)), "id": "case"} for pair in pairs]
    expected = run(pairs, weights="given")
    found = run(mapped, weights="given")
    assert torch.equal(found.sums["mpmg"]["3"], expected.sums["mpmg"]["3"])


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_names_layer_and_batch(poison):
    data = pictures(3)
    data[1][0][0, 0, 0, 0] = poison
    model = classifier()
    with (
        given_back(model),
        pytest.raises(
            IntegrityError, match=r"gradient of layer '\d' is not finite in batch 2"
        ) as e,
    ):
        run(data, model=model)
    assert e.value.exit_code == 4


def test_a_gradient_that_is_not_finite_in_one_layer_names_that_layer():
    class Explode(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * float("inf")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.early, self.late = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            x = self.early(x)
            return self.late(Explode.apply(x) if self.training and torch.is_grad_enabled() else x)

    model = Net()
    graph = traced(model.eval(), 2, 4)
    with pytest.raises(IntegrityError, match="layer 'early' is not finite in batch 1"):
        score(model, graph, [(torch.ones(2, 4), torch.tensor([0, 1]))], cross_entropy)
