"""Random networks: whatever is combined with whatever, the slim network is the masked one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from ranp.graph import build_graph
from tests.oracle import compare, random_alive, randomize_, unchanged
from tests.zoo.case import floats
from tests.zoo.random_networks import INPUT, Program, RandomNet, programs

_COMMON = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


def check_program(program: Program, share: float) -> None:
    torch.manual_seed(0)
    model = randomize_(RandomNet(program).double().eval())
    inputs = floats(INPUT)()
    with unchanged(model):
        graph = build_graph(model, inputs)
        alive = random_alive(graph, share)
        result = compare(model, graph, alive, inputs)
    assert result.error <= 1e-10
    assert result.variation > 0


@settings(max_examples=80, derandomize=True, **_COMMON)
@given(programs(), st.sampled_from((0.3, 0.5, 0.8, 1.0)))
def test_slim_equals_masked(program: Program, share: float) -> None:
    check_program(program, share)


@pytest.mark.slow
@seed(2020)
@settings(max_examples=500, **_COMMON)
@given(programs(), st.sampled_from((0.3, 0.5, 0.8, 1.0)))
def test_slim_equals_masked_on_more(program: Program, share: float) -> None:
    check_program(program, share)
