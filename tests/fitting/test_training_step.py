"""Ways to train: what changes, and which goes further than which."""

from __future__ import annotations

import pytest

from ranp.errors import UsageError
from ranp.fitting.training_step import TrainingStep, changes, is_part_of, variants

STEP = TrainingStep(batch=4, sample=(2, 128, 96, 24))


def test_variants_are_all_combinations_least_intrusive_first():
    found = variants(STEP)
    # Three batches, with and without checkpointing, two precisions, two crops; but for itself.
    assert len(found) == len(set(found)) == 3 * 2 * 2 * 2 - 1
    counts = [len(changes(STEP, other)) for other in found]
    assert counts == sorted(counts) and counts[-1] == 4
    assert [changes(STEP, other) for other in found[:5]] == [
        ("checkpointing",),
        ("bf16",),
        ("batch 2",),
        ("batch 1",),
        ("crop 96x64x16",),
    ]


def test_what_is_done_already_is_no_variant():
    step = TrainingStep(batch=1, sample=(2, 16, 16), precision="bf16", recompute=True)
    assert variants(step) == []


def test_only_a_crop_changes_operations():
    assert [changes(STEP, other) for other in variants(STEP, only_crops=True)] == [
        ("crop 96x64x16",)
    ]


def test_a_part_of_a_combination():
    by_change = {changes(STEP, other): other for other in variants(STEP)}
    both = by_change["batch 2", "checkpointing"]
    assert is_part_of(STEP, by_change["checkpointing",], both)
    assert is_part_of(STEP, by_change["batch 2",], both)
    assert is_part_of(STEP, by_change["batch 2",], by_change["batch 1",])
    assert not is_part_of(STEP, by_change["batch 1",], both)
    assert not is_part_of(STEP, by_change["bf16",], both)
    assert not is_part_of(STEP, both, both)
    assert not is_part_of(STEP, both, by_change["checkpointing",])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"sample": ()}, "the shape of a sample must be channels, then space"),
        ({"sample": (1, 0, 4)}, "the shape of a sample must be channels, then space"),
        ({"optimizer": "lion"}, "optimizer must be one of 'sgd', .*got 'lion'"),
        ({"precision": "8"}, "precision must be one of .*got '8'"),
        ({"device": "tpu"}, "device must be one of 'cpu', 'cuda', got 'tpu'"),
    ],
)
def test_nonsense_is_refused(wrong, says):
    with pytest.raises(UsageError, match=says):
        TrainingStep(**{"batch": 1, "sample": (1, 8, 8), **wrong})


def test_it_says_what_it_is():
    step = TrainingStep(
        2, (4, 128, 128), optimizer="sgd", precision="bf16", recompute=True, device="cuda"
    )
    assert str(step) == (
        "batch 2, 4x128x128, sgd, bf16 mixed precision, activation checkpointing, cuda"
    )
