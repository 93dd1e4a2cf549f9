"""Over random small networks: no method of `fit`'s table keeps more neurons than `fit` does.

The table has every method that balances layers (Eq. 9) and whose costs can be counted.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import ranp
from ranp.errors import InfeasibleError
from ranp.pruning import METHODS, Choice, meet_budget

SHAPE = (1, 2, 8, 8, 8)
BALANCED = {row.name for row in METHODS.values() if row.balance and row.resource != "latency"}


class Net(nn.Module):
    """Two levels; the second is added to, or concatenated with, the first."""

    def __init__(self, widths, adds, norm):
        super().__init__()
        first, second, third = widths
        self.first = nn.Conv3d(2, first, 3, padding=1)
        self.down = nn.Conv3d(first, second, 3, stride=2, padding=1)
        self.norm = nn.InstanceNorm3d(second, affine=True) if norm else nn.Identity()
        self.deep = nn.Conv3d(second, third, 3, padding=1)
        self.up = nn.ConvTranspose3d(third, first, 2, stride=2)
        self.head = nn.Conv3d(first if adds else 2 * first, 3, 1)
        self.adds = adds

    def forward(self, x):
        x = self.first(x).relu()
        y = self.up(self.deep(self.norm(self.down(x)).relu()).relu()).relu()
        return self.head(x + y if self.adds else torch.cat([x, y], 1))


def peak(model):
    batch = (torch.randn(SHAPE), torch.zeros((1, *SHAPE[2:]), dtype=torch.int64))
    return ranp.predict_training_memory(
        model, batch, forward=lambda model, xy: F.cross_entropy(model(xy[0]), xy[1]), device="cuda"
    ).peak


def neurons(plan):
    return sum(len(layer.kept) for layer in plan.layers.values())


COST = {
    "memory": peak,
    "flops": lambda model: 1e9 * ranp.count(model, ranp.trace(model, SHAPE)).gflops,
    "params": lambda model: sum(p.numel() for p in model.parameters()),
}


@pytest.mark.slow
@pytest.mark.parametrize("resource", COST)
@given(
    widths=st.tuples(*[st.integers(4, 12)] * 3),
    adds=st.booleans(),
    norm=st.booleans(),
    share=st.integers(30, 90),
    seed=st.integers(0, 9),
)
@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_method_of_the_table_keeps_more_neurons(resource, widths, adds, norm, share, seed):
    torch.manual_seed(seed)
    model = Net(widths, adds, norm)
    batch = (torch.randn(SHAPE), torch.randint(0, 3, (1, *SHAPE[2:])))
    step = {"batch": 1, "input": SHAPE[1:], "device": "cuda"}
    try:
        result = ranp.fit(model, [batch], F.cross_entropy, **{resource: f"{share}%"}, **step)
    except InfeasibleError:  # layers of a few channels cannot be cut to any share
        reject()
    (budget,) = result.budgets
    assert COST[resource](result.model) <= budget.limit

    tried = {(each.method, *each.settings.values()) for each in result.methods}
    ways = [("paper", 0), ("mean", "auto")] if norm else [("paper", 0)]
    if result.binding is not None:
        assert tried == {(name, *way) for name in BALANCED for way in ways}
    kept = neurons(result.plan)
    for name, coupling, floor in tried:
        options = {"method": name, "coupling": coupling, "floor": floor}
        if resource != "memory":
            other = replace(result.chooser, choice=Choice.make(**options))
            with suppress(InfeasibleError):
                _, alive = meet_budget(other, [budget])
                assert sum(map(len, other.graph.kept(alive).values())) <= kept
        for sparsity in (0.02 * number for number in range(49, -1, -1)):
            with suppress(InfeasibleError):
                graph = result.chooser.graph
                plan = ranp.plan(model, result.scores, sparsity=sparsity, graph=graph, **options)
                if neurons(plan) > kept:
                    assert COST[resource](plan.apply(model)) > budget.limit
                    break
