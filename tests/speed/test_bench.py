"""Full against slim: what is compared with what, and when not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ranp.errors import UsageError
from ranp.speed import Trial
from ranp.speed import bench as library
from ranp.speed.bench import Comparison, Measured, batch_shapes, compare_speed


def network(width):
    return nn.Sequential(nn.Conv3d(1, width, 3, padding=1), nn.ReLU(), nn.Conv3d(width, 2, 1))


@pytest.fixture
def idle_machine(monkeypatch):
    monkeypatch.setattr(library, "others_running", lambda: 0.0)


def test_every_shape_and_mode_is_compared(idle_machine):
    shapes = [(1, 1, 4, 4, 4), (2, 1, 6, 6, 6)]
    found = compare_speed(network(8), network(2), shapes, theoretical=4.0, repetitions=3)
    assert [(c.mode, c.shape) for c in found.comparisons] == [
        (mode, shape) for shape in shapes for mode in ("train", "inference")
    ]
    for comparison in found.comparisons:
        assert len(comparison.full.times) == len(comparison.slim.times) == 3
        # The full network's hidden volume alone: 8 channels of 4 bytes.
        samples, _, *space = comparison.shape
        voxels = samples * space[0] ** 3
        assert comparison.full.peak_bytes >= 8 * 4 * voxels > comparison.slim.peak_bytes / 4
    assert found.to_dict()["comparisons"][0]["theoretical"] == 4.0


def test_speedup_is_that_of_the_medians():
    full, slim = Measured(10.0, 0.1, (10.0,), 5), Measured(2.0, 0.0, (2.0,), 1)
    comparison = Comparison("train", (1,), full, slim, 20.0)
    assert (comparison.speedup, comparison.realised) == (5.0, 0.25)
    assert comparison.to_dict()["realised"] == 0.25


def test_sizes_are_edges_of_volumes_and_of_frames():
    assert batch_shapes((1, 4, 64, 64, 64), [32], [2]) == [(2, 4, 32, 32, 32)]
    clip = (1, 3, 16, 112, 112)
    assert batch_shapes(clip, [56, 32], [1]) == [(1, 3, 16, 56, 56), (1, 3, 16, 32, 32)]
    assert batch_shapes(clip, [], [1, 2]) == [clip, (2, *clip[1:])]


def test_a_busy_machine_is_not_measured(monkeypatch):
    monkeypatch.setattr(library, "others_running", lambda: 2.0)
    with pytest.raises(UsageError, match=r"busy \(2\.0 other threads running.*--force"):
        compare_speed(network(2), network(1), [(1, 1, 4, 4, 4)], theoretical=1.0)
    shapes = [(1, 1, 4, 4, 4)]
    forced = compare_speed(network(2), network(1), shapes, theoretical=1.0, force=True)
    assert forced.others == 2.0


def test_both_networks_are_optimized(idle_machine, monkeypatch):
    seen = []

    class Kept:
        kept = "something"
        trials = (Trial("as given", 3.0, 0.0),)

    def optimize(model, shape, mode, *, keep_memory):
        seen.append((shape, mode, keep_memory))
        return model

    monkeypatch.setattr(library, "optimize", optimize)
    monkeypatch.setattr(library, "optimization_of", lambda m: Kept)
    monkeypatch.setattr(library, "return_freed_memory", lambda: seen.append("undone"))
    shapes = [(1, 1, 4, 4, 4)]
    found = compare_speed(
        network(2), network(1), shapes, theoretical=1.0, modes=("train",), optimized=True
    )
    assert seen == [*[((1, 1, 4, 4, 4), "train", True)] * 2, "undone"]
    assert found.comparisons[0].treatment == {"full": "something", "slim": "something"}
    assert found.comparisons[0].as_given == {"full": 3.0, "slim": 3.0}


class Watched(nn.Conv3d):
    """Keeps its logits, which may be given out one class at a time, and their gradient."""

    def __init__(self, *, apart):
        super().__init__(1, 3, 1)
        self.apart, self.steps = apart, []

    def forward(self, x):
        logits = super().forward(x)
        if logits.requires_grad:
            logits.register_hook(lambda gradient: self.steps.append((logits.detach(), gradient)))
        return [logits[:, 0], logits[:, 1]] if self.apart else logits


@pytest.mark.parametrize("apart", [False, True])
def test_the_loss_is_that_of_training_where_there_are_classes(idle_machine, apart):
    model = Watched(apart=apart)
    shapes = [(2, 1, 4, 4, 4)]
    compare_speed(model, network(1), shapes, theoretical=1.0, modes=("train",), repetitions=1)
    logits, gradient = model.steps[0]
    logits.requires_grad_()
    if apart:
        loss = logits[:, 0].mean() + logits[:, 1].mean()
    else:
        labels = torch.zeros(2, 4, 4, 4, dtype=torch.int64)
        loss = nn.functional.cross_entropy(logits, labels)
    (expected,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, expected)
