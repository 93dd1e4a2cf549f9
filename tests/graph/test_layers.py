"""Layers of a graph: every one once, however often and in whichever mode it is called."""

from __future__ import annotations

import pytest
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


@pytest.mark.parametrize(
    ("norm", "classes"),
    [
        (lambda x, w, b: torch.native_group_norm(x, w, b, *_sizes(x), 4, 1e-5)[0], 2),
        (lambda x, w, b: torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)[0], 8),
    ],
    ids=["group", "batch"],
)
def test_norms_that_also_give_out_statistics(norm, classes):
    """Of 8 channels in 4 groups, each group loses the same ones; batch norm ties none."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1)
            self.scale, self.shift = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))

        def forward(self, x):
            return self.last(norm(self.first(x), self.scale, self.shift))

    assert build_graph(Net(), (2, 3, 4, 4)).removable.sum() == classes


def _sizes(x):
    return x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
