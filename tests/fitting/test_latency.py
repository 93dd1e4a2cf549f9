"""A budget of time, against a clock that depends on the network alone."""

from __future__ import annotations

import random

import pytest
import torch

import ranp
from ranp.errors import InfeasibleError
from ranp.fitting import DoesNotFit, machine
from ranp.resources import latency

STEP = {"batch": 2, "input": (2, 8, 8, 8), "device": "cpu"}


@pytest.fixture
def clock(monkeypatch):
    """Seconds are millionths of the parameters; notes what was measured."""
    measured = []

    def measure(model, shape, *, mode="train", repetitions=5):
        assert mode == "train" and shape == (2, 2, 8, 8, 8)
        measured.append(sum(p.numel() for p in model.parameters()))
        return measured[-1] * 1e-6

    monkeypatch.setattr(latency, "measure_latency", measure)
    return measured


def test_half_the_time_is_met_within_five_percent(model, loader, loss, clock):
    full = sum(p.numel() for p in model.parameters()) * 1e-6
    result = ranp.fit(model, loader, loss, latency=full / 2, **STEP)
    seconds = sum(p.numel() for p in result.model.parameters()) * 1e-6
    assert result.binding == "latency"
    assert 0.95 * full / 2 <= seconds <= full / 2
    assert result.figures["slim"]["latency"] == pytest.approx(seconds)
    assert result.figures["full"]["latency"] == pytest.approx(full)
    assert clock.count(round(seconds * 1e6)) >= 2  # what is kept was measured again


@pytest.mark.parametrize("seed", range(5))
def test_half_the_time_is_met_on_a_noisy_clock(model, loader, loss, monkeypatch, seed):
    """Each measurement is off by up to 2 %."""
    noise = random.Random(seed)

    def seconds(network):
        return sum(p.numel() for p in network.parameters()) * 1e-6

    def measure(network, shape, **options):
        return seconds(network) * noise.uniform(0.98, 1.02)

    monkeypatch.setattr(latency, "measure_latency", measure)
    budget = seconds(model) / 2
    result = ranp.fit(model, loader, loss, latency=budget, **STEP)
    # The mean of two measurements keeps the budget, or is at most 4 % below it.
    assert 0.94 * budget <= seconds(result.model) <= 1.02 * budget
    assert result.figures["slim"]["latency"] <= budget


def test_where_times_jump_the_least_pruned_is_kept(model, loader, loss, monkeypatch):
    """Twice the time above 60 % of the parameters: half of the time is not to be had exactly."""
    whole = sum(p.numel() for p in model.parameters())

    def measure(network, shape, **options):
        share = sum(p.numel() for p in network.parameters()) / whole
        return share if share > 0.6 else share / 2

    monkeypatch.setattr(latency, "measure_latency", measure)
    result = ranp.fit(model, loader, loss, latency=0.5, **STEP)
    share = sum(p.numel() for p in result.model.parameters()) / whole
    assert 0.58 <= share <= 0.6


def test_other_budgets_are_kept_too(model, loader, loss, clock):
    parameters = sum(p.numel() for p in model.parameters())
    result = ranp.fit(
        model, loader, loss, latency=0.9e-6 * parameters, params=parameters // 3, **STEP
    )
    assert result.binding == "params"
    assert result.figures["slim"]["params"] <= parameters // 3


def test_a_network_that_is_fast_enough_is_left_whole(model, loader, loss, clock):
    result = ranp.fit(model, loader, loss, latency="1s", **STEP)
    assert result.sparsity == 0 and result.binding is None


def test_a_time_that_cannot_be_reached(model, loader, loss, clock):
    with pytest.raises(DoesNotFit, match=r"keeps a latency budget of 0\.0 ms") as caught:
        ranp.fit(model, loader, loss, latency=1e-6, **STEP)
    assert caught.value.nearest.figures["latency"] > 1e-6
    assert caught.value.alternatives == ()


def test_what_does_not_fit_is_not_measured(model, loader, loss, clock, monkeypatch):
    scores = ranp.score(model, loader, loss)
    monkeypatch.setattr(machine, "available_memory", lambda device: 1000)
    with pytest.raises(InfeasibleError, match="measuring a training step with batch 2"):
        ranp.fit(model, scores=scores, latency="1s", **STEP)
    assert clock == []


def test_checkpointing_and_precision_are_on_while_measuring(model, loader, loss, monkeypatch):
    seen = []

    def measure(model, shape, *, mode):
        patched = any("forward" in vars(module) for module in model.modules())
        seen.append((patched, torch.is_autocast_enabled("cpu")))
        return 1e-3

    monkeypatch.setattr(latency, "measure_latency", measure)
    scores = ranp.score(model, loader, loss)
    for options in ({}, {"recompute": True}, {"precision": "bf16"}):
        ranp.fit(model, scores=scores, latency="1s", **STEP, **options)
    assert seen == [(False, False), (True, False), (False, True)]
