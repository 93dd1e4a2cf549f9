"""Layers of a graph: every one once, however often and in whichever mode it is called."""

from __future__ import annotations

import torch
from torch import nn

from ranp.graph import build_graph


def test_a_single_channel_is_one_neuron():
    model = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 1, 1))
    graph = build_graph(model, (1, 1, 8, 8, 8))
    assert {name: len(layer) for name, layer in graph.layers.items()} == {"0": 4, "2": 1}


def test_a_layer_called_twice_is_one_layer():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again, self.last = (
                nn.Conv1d(1, 4, 1),
                nn.Conv1d(4, 4, 1),
                nn.Conv1d(4, 1, 1),
            )

        def forward(self, x):
            x = self.again(torch.relu(self.again(self.first(x))))
            return self.last(x) + self.last(torch.relu(x))

    graph = build_graph(Twice(), (1, 1, 8))
    assert {name: len(layer) for name, layer in graph.layers.items()} == {
        "first": 4, "again": 4, "last": 1,
    }  # fmt: skip
