"""Measured latency: what is timed, and that measuring leaves no trace."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from ranp.errors import UsageError
from ranp.resources.latency import measure_latency
from ranp.resources.measuring import Timing, time_in_turns


def small_network():
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.Dropout(0.5), nn.Conv3d(4, 2, 1)
    )


@pytest.mark.parametrize("mode", ["train", "inference"])
def test_measuring_leaves_the_network_as_it_was(mode):
    torch.manual_seed(0)
    model = small_network().train()
    model(torch.randn(1, 1, 4, 4, 4)).mean().backward()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [p.grad for p in model.parameters()]
    random_state = torch.get_rng_state()

    assert measure_latency(model, (1, 1, 4, 4, 4), mode=mode, repetitions=2) > 0

    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_train_steps_run_in_train_mode_with_gradients_and_inference_in_neither():
    seen = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            seen.append((self.training, torch.is_grad_enabled()))
            return x * self.weight

    measure_latency(Spy(), (1, 2), mode="train", repetitions=1)
    measure_latency(Spy(), (1, 2), mode="inference", repetitions=1)
    assert seen == [(True, True)] * 2 + [(False, False)] * 2


def test_the_median_of_the_clock_is_returned():
    ticks = iter([0, 5, 10, 11, 20, 23])  # durations 5, 1, 3
    clocked = measure_latency(nn.Linear(2, 2), (1, 2), repetitions=3, clock=lambda: next(ticks))
    assert clocked == 3


def test_actions_take_turns_after_a_warm_up():
    done = []
    ticks = itertools.count()
    actions = {name: lambda name=name: done.append(name) for name in "ab"}
    timings = time_in_turns(actions, 3, clock=lambda: next(ticks))
    assert "".join(done) == "ab" + "ababab"
    assert timings["a"].seconds == (1, 1, 1)


def test_spread_is_the_median_deviation_relative_to_the_median():
    timing = Timing((1.0, 2.0, 2.0, 3.0, 10.0))
    assert (timing.median, timing.fastest, timing.spread) == (2.0, 1.0, 0.5)


def test_unknown_mode_is_refused():
    with pytest.raises(UsageError, match="unknown mode 'training': use train or inference"):
        measure_latency(nn.Linear(2, 2), (1, 2), mode="training")
