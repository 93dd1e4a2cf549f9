from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranp.datasets import synthetic_cases
from ranp.datasets.cases import Cases
from ranp.datasets.loader import Loader, Shard, epoch_batches
from ranp.errors import IntegrityError, UsageError


@dataclass(frozen=True)
class Noise:
    """A reader whose samples are nothing but their randomness."""

    count: int

    @property
    def ids(self):
        return [f"case{index}" for index in range(self.count)]

    def read(self, index, rng):
        return {"x": rng.normal(size=3).astype(np.float32), "y": index, "category": "c"}


class Process(Noise):
    """A reader that says which process it reads in."""

    def read(self, index, rng):
        return {**super().read(index, rng), "process": os.getpid()}


class Faulty(Noise):
    """A reader with one case that cannot be read."""

    def read(self, index, rng):
        if index == 3:
            raise IntegrityError("case 3 is damaged")
        return super().read(index, rng)


def equal(one, other):
    return (
        torch.equal(one["x"], other["x"])
        and torch.equal(one["y"], other["y"])
        and one["id"] == other["id"]
    )


def test_samples_depend_on_seed_epoch_and_index_alone():
    cases = Cases(Noise(4), seed=7)
    again = Cases(Noise(4), seed=7)
    assert equal(cases[2, 3], again[2, 3])
    assert not equal(cases[2, 3], cases[1, 3])
    assert not torch.equal(cases[2, 3]["x"], cases[2, 1]["x"])
    assert not torch.equal(cases[2, 3]["x"], Cases(Noise(4), seed=8)[2, 3]["x"])
    assert equal(cases[3], cases[0, 3])
    with pytest.raises(IndexError):
        cases[4]


def test_batches_are_dicts_with_tensors_and_ids():
    batch = next(iter(Loader(Cases(Noise(4)), 2, training=False)))
    assert batch["x"].shape == (2, 3)
    assert batch["y"].tolist() == [0, 1]
    assert batch["id"] == ["case0", "case1"]
    assert batch["category"] == ["c", "c"]


@pytest.mark.parametrize("training", [True, False])
def test_workers_change_nothing(training):
    cases = Cases(Noise(11), seed=3)
    epochs = [list(Loader(cases, 2, training=training, workers=w).epoch(5)) for w in (0, 1, 2)]
    assert len(epochs[0]) == (5 if training else 6)
    for other in epochs[1:]:
        assert len(other) == len(epochs[0])
        assert all(map(equal, epochs[0], other))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_epoch_goes_on_where_it_was(workers):
    loader = Loader(Cases(Noise(13), seed=3), 2, training=True, workers=workers)
    whole = list(loader.epoch(4))
    rest = list(loader.epoch(4, start=2))
    assert len(rest) == len(whole) - 2
    assert all(map(equal, whole[2:], rest))


def reading_processes(loader, epoch):
    return {int(number) for batch in loader.epoch(epoch) for number in batch["process"]}


def test_workers_live_as_long_as_their_loader():
    loader = Loader(Cases(Process(8)), 1, training=True, workers=2)
    first = reading_processes(loader, 0)
    assert len(first) == 2
    assert os.getpid() not in first
    assert reading_processes(loader, 1) == first
    workers = multiprocessing.active_children()
    assert {worker.pid for worker in workers} >= first
    del loader
    assert not any(worker.is_alive() for worker in workers if worker.pid in first)


@pytest.mark.parametrize("seen", [0, 1, 4])
def test_an_epoch_that_was_left_early_leaves_nothing_behind(seen):
    cases = Cases(Noise(13), seed=3)
    expected = list(Loader(cases, 2, training=True).epoch(5))
    loader = Loader(cases, 2, training=True, workers=2)
    list(islice(loader.epoch(4), seen))
    found = list(loader.epoch(5))
    assert len(found) == len(expected)
    assert all(map(equal, expected, found))


def test_workers_read_one_epoch_at_a_time():
    loader = Loader(Cases(Noise(8)), 2, training=True, workers=2)
    before = loader.epoch(0)
    next(before)
    now = loader.epoch(1)
    with pytest.raises(UsageError, match="another epoch"):
        next(before)
    assert len(list(now)) == 4


def test_workers_survive_a_case_that_cannot_be_read():
    loader = Loader(Cases(Faulty(6)), 1, training=False, workers=2)
    for _ in range(2):
        batches = loader.epoch(0)
        assert [next(batches)["y"].item() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(IntegrityError, match="case 3 is damaged"):
            next(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_leaves_the_random_numbers_of_training_alone(workers):
    loader = Loader(Cases(Noise(4)), 2, training=True, workers=workers)
    before = torch.random.get_rng_state()
    for epoch in range(2):
        list(loader.epoch(epoch))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_every_epoch_has_another_order_and_other_randomness():
    loader = Loader(Cases(Noise(8)), 4, training=True)
    ids = [tuple(i for batch in loader.epoch(epoch) for i in batch["id"]) for epoch in range(5)]
    assert len(set(ids)) == 5
    assert {frozenset(i) for i in ids} == {frozenset(f"case{k}" for k in range(8))}


def keys(cases, batch, world, training, epoch=0):
    return [
        epoch_batches(
            cases, batch, seed=1, epoch=epoch, training=training, shard=Shard(rank, world)
        )
        for rank in range(world)
    ]


@given(cases=st.integers(0, 60), batch=st.integers(1, 5), world=st.integers(1, 5))
def test_validation_sees_every_case_exactly_once(cases, batch, world):
    seen = [index for shard in keys(cases, batch, world, False) for b in shard for _, index in b]
    assert sorted(seen) == list(range(cases))


@given(cases=st.integers(0, 60), batch=st.integers(1, 5), world=st.integers(1, 5))
def test_training_gives_equal_whole_batches_without_duplicates(cases, batch, world):
    shards = keys(cases, batch, world, True)
    assert {len(shard) for shard in shards} == {cases // (batch * world)}
    assert all(len(b) == batch for shard in shards for b in shard)
    seen = [index for shard in shards for b in shard for _, index in b]
    assert len(set(seen)) == len(seen)


def test_cases_left_over_take_part_in_other_epochs():
    seen = {index for epoch in range(20) for b in keys(7, 3, 1, True, epoch)[0] for _, index in b}
    assert seen == set(range(7))


def test_process_without_batches():
    loader = Loader(Cases(Noise(1)), 1, training=False, shard=Shard(1, 2))
    assert len(loader) == 0
    assert list(loader) == []


def test_real_samples_with_workers():
    cases = synthetic_cases("shapenet", size=16, samples=6, seed=0)
    one, two = (list(Loader(cases, 3, training=True, workers=w).epoch(1)) for w in (0, 2))
    assert all(map(equal, one, two))


def test_wrong_use():
    with pytest.raises(UsageError, match="batch size must be positive, got 0"):
        Loader(Cases(Noise(2)), 0, training=False)
    with pytest.raises(UsageError, match="3 cases do not fill"):
        Loader(Cases(Noise(3)), 2, training=True, shard=Shard(0, 2))
    with pytest.raises(UsageError, match="rank must be 0 to 1, got 2"):
        Shard(2, 2)
