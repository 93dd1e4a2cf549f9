"""The memory of a training step in records and reports."""

from __future__ import annotations

import pytest
from torch import nn

import ranp
from ranp.recording.timelines import predict_timelines, timeline_of
from ranp.report.sections import peak_holders, timeline


def network():
    return nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 6, 3, padding=1), nn.Conv3d(6, 2, 1)
    )


def memory_of(depth):
    layers = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(depth)]
    return ranp.predict_training_memory(nn.Sequential(*layers), (2, 4), optimizer="sgd")


def test_a_long_timeline_is_thinned_and_keeps_its_peak():
    memory = memory_of(60)
    assert len(memory.timeline.bytes) > 400
    line = timeline_of(memory)
    assert 200 < len(line["bytes"]) <= 400
    assert max(line["bytes"]) == line["peak"] == memory.peak
    share = memory.timeline.backward / len(memory.timeline.bytes)
    assert line["backward"] / len(line["bytes"]) == pytest.approx(share, abs=0.01)


def test_a_short_one_is_kept_as_it_is():
    memory = memory_of(2)
    line = timeline_of(memory)
    assert line["bytes"] == list(memory.timeline.bytes)
    assert (line["backward"], line["step"]) == (memory.timeline.backward, memory.timeline.step)
    assert line["holders"][0] == [memory.holders[0].module, memory.holders[0].bytes]


def test_a_pruning_predicts_its_own():
    result = ranp.prune(network(), sparsity=0.4, method="layerwise", example_input=(1, 1, 8, 8, 8))
    lines = predict_timelines(result.chooser, result.plan)
    for name, model in (("full", network()), ("slim", result.model)):
        memory = ranp.predict_training_memory(model, (1, 1, 8, 8, 8))
        assert lines[name] == timeline_of(memory)


def test_a_network_that_cannot_be_trained_at_its_size_has_none():
    model = nn.Sequential(nn.Conv3d(1, 4, 2), nn.BatchNorm3d(4), nn.Conv3d(4, 2, 1))
    result = ranp.prune(model, sparsity=0.4, method="layerwise", example_input=(1, 1, 2, 2, 2))
    assert predict_timelines(result.chooser, result.plan) == {}


def test_the_report_marks_phases_and_names_holders():
    result = ranp.prune(network(), sparsity=0.4, method="layerwise", example_input=(1, 1, 8, 8, 8))
    record = {"timelines": predict_timelines(result.chooser, result.plan)}
    chart = timeline(record).chart
    assert [series.name for series in chart.series] == ["full", "slim"]
    assert [mark.label for mark in chart.marks] == ["backward", "step"]
    assert 0 < chart.marks[0].at < chart.marks[1].at < chart.width
    held = peak_holders(record)
    full = dict(record["timelines"]["full"]["holders"])
    assert held.headings == ["layer", "full, MiB", "slim, MiB"]
    assert {row[0] for row in held.rows} >= {name for name in full if name}
    assert "in the backward pass" in held.about
