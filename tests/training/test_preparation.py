"""A run is prepared without doing anything twice."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch

from ranp.datasets import DATASETS
from ranp.graph import build, build_graph
from ranp.resources import count
from ranp.slimming import Plan, slim
from ranp.training.job import Job, claim
from ranp.training.preparation import prepare
from ranp.training.run import train
from tests.training.networks import Plain


@pytest.fixture
def calls(monkeypatch):
    """Counts traces, networks built, slim networks built, and openings of each split."""
    counter = Counter()

    def counted(name, function):
        def call(*arguments, **options):
            counter[name] += 1
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(build, "protect_patterns", counted("traces", build.protect_patterns))
    monkeypatch.setattr(slim, "rebuild_slim", counted("slim networks", slim.rebuild_slim))
    dataset = DATASETS["hippocampus"]

    def open_reader(directory, split, **options):
        counter[split] += 1
        return dataset.open_reader(directory, split, **options)

    row = dataclasses.replace(dataset, open_reader=open_reader)
    monkeypatch.setitem(DATASETS, "hippocampus", row)
    return counter


def job_of(tiny, crops, directory, calls, **changes):
    def factory():
        calls["networks"] += 1
        return Plain()

    config = tiny(network__name="tests:Plain", network__options={}, epochs=1, **changes)
    return Job(config, directory, crops, factory=factory)


ONCE = {"networks": 1, "train": 1, "validation": 1, "traces": 1}


def test_a_pruned_run_does_everything_once(tiny, crops, tmp_path, calls):
    job = job_of(tiny, crops, tmp_path / "run", calls, pruning__method="ranp-f")
    record = train(job)
    assert calls == {**ONCE, "slim networks": 1}
    graph = build_graph(Plain(), (1, 1, 24, 24, 24))
    alive = Plan.load(tmp_path / "run" / "plan.json").alive(graph)
    assert record["full"] == count(Plain(), graph).totals()
    assert record["slim"] == count(Plain(), graph, alive).totals()


def test_a_full_run_does_everything_once(tiny, crops, tmp_path, calls):
    train(job_of(tiny, crops, tmp_path / "run", calls))
    assert calls == ONCE


def test_a_resumed_run_builds_the_same_network_once(tiny, crops, tmp_path, calls):
    job = job_of(tiny, crops, tmp_path / "run", calls, pruning__method="random")
    claim(job, resume=False)
    first, _ = prepare(job)
    calls.clear()
    again, _ = prepare(job)
    assert calls == {**ONCE, "slim networks": 1}
    assert (again.plan, again.full, again.slim) == (first.plan, first.full, first.slim)
    for one, two in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_scoring_at_another_size_reads_the_same_cases(tiny, crops, tmp_path, calls):
    job = job_of(tiny, crops, tmp_path, calls, pruning__method="ranp-f", pruning__size=16)
    network, _ = prepare(job)
    assert calls["train"] == calls["validation"] == calls["networks"] == 1
    assert network.plan.inputs["args"][0]["tensor"][-1] == 16
    assert network.full == count(Plain(), build_graph(Plain(), (1, 1, 24, 24, 24)))
