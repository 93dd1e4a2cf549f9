"""Networks and helpers that several tests of the pruning package share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ranp.graph import ChannelGraph, build_graph
from ranp.pruning import METHODS, Forward, Method, Scores, Scoring, make_forward
from ranp.pruning import score as score_neurons
from tests.zoo.case import Net


def linear(rows: list[list[float]]) -> nn.Linear:
    """A linear layer without bias, in float64, with given weights."""
    layer = nn.Linear(len(rows[0]), len(rows), bias=False, dtype=torch.float64)
    layer.weight.data = torch.tensor(rows, dtype=torch.float64)
    return layer


def pointwise(rows: list[list[float]]) -> nn.Conv1d:
    """A convolution with a kernel of one, without bias, in float64, with given weights."""
    layer = nn.Conv1d(len(rows[0]), len(rows), 1, bias=False, dtype=torch.float64)
    layer.weight.data = torch.tensor(rows, dtype=torch.float64)[..., None]
    return layer


def two_layers() -> nn.Module:
    """Linear, ReLU, linear: 3 + 2 neurons."""
    return Net(
        lambda net, x: net.b(F.relu(net.a(x))),
        a=linear([[1, -1], [2, 0.5], [-1, 1]]),
        b=linear([[1, -2, 3], [0.5, 1, -1]]),
    )


def three_layers() -> nn.Module:
    """Three convolutions with ReLU: 2 + 2 + 3 neurons."""
    return Net(
        lambda net, x: net.c(F.relu(net.b(F.relu(net.a(x))))),
        a=pointwise([[1], [-1]]),
        b=pointwise([[1, 2], [3, -1]]),
        c=pointwise([[1, 1], [1, 2], [0, -1]]),
    )


def classifier(*, norm: bool = False, width: int = 6) -> nn.Module:
    """A small convolutional classifier of 2 x 8 x 8 inputs into 3 classes, in float64."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, width, 3, padding=1),
        nn.BatchNorm2d(width) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2),
        nn.BatchNorm2d(2 * width) if norm else nn.Identity(),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 3),
    ).double()


def pictures(batches: int, size: int = 4, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Batches for the classifier."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 2, 8, 8, generator=generator, dtype=torch.float64),
            torch.randint(3, (size,), generator=generator),
        )
        for _ in range(batches)
    ]


cross_entropy: Forward = make_forward(F.cross_entropy, None)


def traced(model: nn.Module, *shape: int) -> ChannelGraph:
    """The channel graph of a network with one input."""
    return build_graph(model, shape)


def score(
    model: nn.Module,
    graph: ChannelGraph,
    loader: Iterable[Any] | None,
    forward: Forward | None,
    *,
    methods: Iterable[Method] = (),
    enough: Any = None,
    **settings: Any,
) -> Scores:
    """Scores of a network; the settings are fields of `Scoring`."""
    scoring = Scoring(forward, **settings)
    return score_neurons(model, graph, loader, scoring, methods, enough=enough)


def given_scores(
    model: nn.Module, batches: Iterable[Any], forward: Forward = cross_entropy, *statistics: str
) -> Scores:
    """Scores of the weights as they are."""
    batches = list(batches)
    graph = traced(model, *batches[0][0].shape)
    methods = serving(*statistics)
    return score(model, graph, batches, forward, methods=methods, weights="given")


def serving(*statistics: str) -> list[Method]:
    """Methods that need statistics."""
    return [m for m in METHODS.values() if {s.name for s in m.statistics} & set(statistics)]


@contextmanager
def given_back(model: nn.Module) -> Iterator[None]:
    """Asserts that a model comes out as it went in: tensors, modes, requires_grad, hooks."""
    identities, values = _identities(model), _values(model)
    yield
    assert _identities(model) == identities
    for name, value in _values(model).items():
        assert torch.equal(value, values[name]), name


def _identities(model: nn.Module) -> list[Any]:
    modules = [
        (name, m.training, list(vars(m)), len(m._forward_hooks), len(m._forward_pre_hooks))
        for name, m in model.named_modules()
    ]
    parameters = [
        (name, id(p), p.data_ptr(), p.requires_grad, None if p.grad is None else id(p.grad))
        for name, p in model.named_parameters()
    ]
    hooks = [name for name, p in model.named_parameters() if p._post_accumulate_grad_hooks]
    return [modules, parameters, [(name, id(b)) for name, b in model.named_buffers()], hooks]


def _values(model: nn.Module) -> dict[str, Tensor]:
    gradients = {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.grad is not None}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers()), **gradients}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
