"""The peak as a function of the living channels is what simulating the step gives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ranp.graph import build_graph, slim_meta_copy
from ranp.models import UNet3D
from ranp.resources import predict_training_memory
from ranp.resources.step_model import NotAProduct, StepModel
from ranp.resources.training_memory import StepSettings

SHAPE = (2, 1, 16, 16, 16)


class Normalised(nn.Module):
    """Instance norm flattens batch and channels; a residual, a concatenation, a deep output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, 12, 3, padding=1)
        self.norm = nn.InstanceNorm3d(12, affine=True)
        self.second = nn.Conv3d(12, 12, 3, padding=1)
        self.down = nn.Conv3d(24, 20, 2, stride=2)
        self.groups = nn.GroupNorm(4, 20)
        self.heads = nn.ModuleList([nn.Conv3d(12, 3, 1), nn.Conv3d(20, 3, 1)])

    def forward(self, x):
        x = F.leaky_relu(self.norm(self.first(x)))
        y = x + self.second(x)
        deep = self.groups(self.down(torch.cat([x, y], 1)))
        return [self.heads[0](y), self.heads[1](deep)]


def few_groups():
    """Layers of two classes of channels, and one of four: those are all widths they can have."""
    widths = (1, 16, 16, 16, 32)
    layers = [
        nn.Sequential(nn.Conv3d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.ReLU())
        for a, b in pairwise(widths)
    ]
    return nn.Sequential(*layers, nn.Conv3d(32, 3, 1))


def loss(output):
    outputs = output if isinstance(output, list) else [output]
    return sum(F.cross_entropy(o, o.new_zeros(o[:, 0].shape, dtype=torch.long)) for o in outputs)


def random_choice(graph, seed):
    random = np.random.default_rng(100 + seed)
    alive = ~graph.removable | (random.random(graph.classes) < random.uniform(0.1, 0.9))
    for layer in graph.layers.values():
        alive[layer.neurons[0]] = True
    return alive


@pytest.mark.parametrize(
    ("build", "device", "options"),
    [
        pytest.param(Normalised, "cpu", {}, marks=pytest.mark.slow),
        (Normalised, "cuda", {"precision": "16", "recompute": True}),
        (lambda: UNet3D(1, 3, levels=2, base_width=6), "cpu", {"recompute": True}),
        (few_groups, "cuda", {}),
    ],
)
def test_the_peak_of_any_choice_is_that_of_a_simulated_step(build, device, options):
    model = build()
    graph = build_graph(model, (1, *SHAPE[1:]))

    def predict(alive, shape=SHAPE):
        slim = slim_meta_copy(model, graph, alive)
        return predict_training_memory(slim, shape, loss=loss, device=device, **options)

    step = StepModel.of(graph, predict, StepSettings(device=device))
    choices = [random_choice(graph, seed) for seed in range(2)]
    for alive in choices:
        assert step.peak(alive) == predict(alive).peak
    smaller = (4, 1, 8, 16, 16)
    rescaled = step.rescaled(predict(graph.all_alive(), smaller))
    assert rescaled.peak(choices[0]) == predict(choices[0], smaller).peak


class Gated(nn.Module):
    """Attention gates: layers that keep a single channel are not broadcast over."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, 3, 3, padding=1)
        self.second = nn.Conv3d(3, 3, 3, padding=1)
        self.gates = nn.ModuleList([nn.Conv3d(3, 1, 1), nn.Conv3d(3, 1, 1)])
        self.head = nn.Conv3d(3, 2, 1)

    def forward(self, x):
        for layer, gate in zip((self.first, self.second), self.gates, strict=True):
            x = layer(x)
            x = x * torch.sigmoid(gate(x))
        return self.head(x)


def test_where_a_single_channel_runs_other_operations_wider_layers_are_learnt_from():
    model = Gated()
    graph = build_graph(model, (1, *SHAPE[1:]))

    def predict(alive):
        slim = slim_meta_copy(model, graph, alive)
        return predict_training_memory(slim, SHAPE, loss=loss, device="cuda")

    with pytest.raises(NotAProduct, match="other operations"):
        StepModel.of(graph, predict, StepSettings(device="cuda"))
    step = StepModel.of(graph, predict, StepSettings(device="cuda"), least=2)
    alive = graph.all_alive()
    alive[graph.layers["first"].neurons[2:]] = False
    assert step.covers(alive) and step.peak(alive) == predict(alive).peak
    alive[graph.layers["first"].neurons[1]] = False
    assert not step.covers(alive)


def test_what_follows_no_channels_is_refused():
    model = nn.Sequential(nn.Conv3d(1, 16, 1), nn.Conv3d(16, 1, 1))
    graph = build_graph(model, (1, 1, 4, 4, 4))

    def forward(model, x):
        return model(x).mean() + torch.zeros(model[0].out_channels ** 2 + 1).sum()

    def predict(alive):
        slim, x = slim_meta_copy(model, graph, alive), torch.zeros(1, 1, 4, 4, 4)
        return predict_training_memory(slim, x, forward=forward, device="cuda")

    with pytest.raises(NotAProduct, match="follows no channels"):
        StepModel.of(graph, predict, StepSettings(device="cuda"))


@pytest.mark.parametrize(("width", "simulated"), [(40, 2), (5, 3)])
def test_more_trials_are_simulated_only_where_one_does_not_tell_layers_apart(width, simulated):
    sizes = pairwise((1, *[width] * 6, 1))
    model = nn.Sequential(*(nn.Conv3d(a, b, 3, padding=1) for a, b in sizes))
    graph = build_graph(model, (1, 1, 4, 4, 4))
    trials = []

    def predict(alive):
        trials.append(alive)
        slim = slim_meta_copy(model, graph, alive)
        return predict_training_memory(slim, (1, 1, 4, 4, 4), device="cuda")

    step = StepModel.of(graph, predict, StepSettings(device="cuda"))
    assert len(trials) == simulated
    alive = random_choice(graph, 0)
    assert step.peak(alive) == predict(alive).peak
