"""Channel classes that hold several neurons of one layer: group norm ties them."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from ranp.graph import build_graph
from ranp.pruning.coupling import channel_groups, couple


@pytest.fixture(scope="module")
def graph():
    # Two groups of four: neurons i and i + 4 must live or die together.
    model = nn.Sequential(nn.Conv1d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv1d(8, 1, 1))
    return build_graph(model, (1, 1, 16))


def kept(graph, retained: list[int]) -> list[int]:
    own = {"0": np.isin(np.arange(8), retained), "3": np.ones(1, bool)}
    return graph.kept(couple(graph, own, channel_groups(graph)))["0"].tolist()


@pytest.mark.parametrize(
    ("retained", "expected"),
    [
        ([], []),
        ([2], [2, 6]),  # one neuron needs its class
        ([0, 4], [0, 4]),  # two neurons fill one class
        ([0, 1, 2, 3], [0, 1, 4, 5]),  # four half-filled classes: as many as four neurons fill
        ([1, 3, 5], [1, 3, 5, 7]),  # the fullest first
        ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_as_many_classes_as_the_retained_neurons_fill(graph, retained, expected):
    assert kept(graph, retained) == expected
