"""Networks of the paper and of MONAI: how much can be removed, and that slim equals masked."""

from __future__ import annotations

import warnings

import pytest

from ranp.graph import build_graph
from tests.oracle import compare, random_alive, randomize_, unchanged
from tests.zoo.case import Case
from tests.zoo.monai_networks import NETWORKS
from tests.zoo.paper_networks import NETWORKS_OF_THE_PAPER


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MONAI's own, about versions of other packages
        yield


def test_there_are_enough_of_monai() -> None:
    kinds = {case.name.partition(",")[0] for case in NETWORKS}
    assert len(kinds) >= 25


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.slow if case.slow else ())
        for case in (*NETWORKS_OF_THE_PAPER, *NETWORKS)
    ],
)
def test_slim_equals_masked(case: Case) -> None:
    model = randomize_(case.make())
    with unchanged(model):
        graph = build_graph(model, case.inputs())
    removable = sum(int(graph.removable[layer.neurons].sum()) for layer in graph.layers.values())
    assert removable >= case.share * graph.neurons
    alive = random_alive(graph, 0.5)
    result = compare(model, graph, alive, case.inputs(), both_ends=case.both_ends)
    assert result.error <= 1e-10
    assert result.variation > 1e-6
    assert not removable or result.effect > 1e-6
