"""One's own training loop as cells of a store."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ranp.errors import UsageError
from ranp.files import ensure_directory, hold_directory
from ranp.graph import build_graph
from ranp.trials.loops import Loop, Training, check_loop
from ranp.trials.reporting import reporting
from ranp.trials.store import Store

SHAPE = (1, 1, 8, 8)


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip


def train(model: nn.Module, seed: int) -> Iterator[dict[str, float]]:
    """Draws from all global generators, as users' code does."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        x = torch.randn(4, *SHAPE[1:]) + random.random() + np.random.rand()
        y = (x.mean((1, 2, 3)) > 0.5).long()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield {"accuracy": float((model(x).argmax(1) == y).float().mean()), "loss": loss.item()}


def make_loop(path: Path, train: Any = train, **options: Any) -> Loop:
    model = build()
    return Loop(Store(path, **options), model, build_graph(model, SHAPE), train, name="mine")


def halved(loop: Loop) -> Any:
    alive = loop.graph.all_alive()
    alive[loop.graph.layers["0"].neurons[4:]] = False
    return alive


def train_to(loop: Loop, seed: int, check_ins: int) -> dict[str, Any]:
    """Returns the first check-ins of a training of the halved network."""
    ((_, found),) = loop.run([(halved(loop), seed)], check_ins)
    return found


def test_a_cell_is_network_training_widths_and_seed(tmp_path: Path) -> None:
    loop = make_loop(tmp_path)
    cell = dict(loop.cell(halved(loop), 3))
    assert len(cell.pop("network")) == 64
    assert cell == {
        "kind": "loop",
        "train": "mine",
        "widths": {"0": [1, 4], "2": [4, 4], "6": [4, 2]},
        "seed": 3,
        "check_ins": None,
    }


def test_allocations_alike_share_a_cell(tmp_path: Path) -> None:
    loop = make_loop(tmp_path)
    other = loop.graph.all_alive()
    other[loop.graph.layers["0"].neurons[:4]] = False
    place = loop.store.place
    assert place(loop.cell(other, 0)) == place(loop.cell(halved(loop), 0))
    assert place(loop.cell(other, 0)) != place(loop.cell(other, 1))


def test_trainings_that_take_turns_come_out_as_if_alone(tmp_path: Path) -> None:
    alone = make_loop(tmp_path / "alone")
    expected = [
        alone.store.require(alone.cell(halved(alone), seed), alone)["curve"] for seed in (0, 1)
    ]
    turns = make_loop(tmp_path / "turns")
    for check_ins in (1, 2, 4):
        curves = [train_to(turns, seed, check_ins)["curve"] for seed in (0, 1)]
        assert curves == [curve[:check_ins] for curve in expected]
    assert expected[0] != expected[1]


class Counting:
    """The training above; counts how often it is begun with every seed."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def __call__(self, model: nn.Module, seed: int) -> Iterator[dict[str, float]]:
        self.begun.append(seed)
        yield from train(model, seed)


def test_processes_share_the_trainings_out(tmp_path: Path) -> None:
    counting = Counting()
    first, second = (make_loop(tmp_path, counting) for _ in range(2))  # locks are by open file
    for seed in (0, 1):
        train_to(first, seed, 1)
    entries = [(halved(second), seed) for seed in (0, 1, 2)]
    found = second.run(entries, 2)
    assert next(found)[0] == 2  # the others are left to the process that has begun them
    expected = [train_to(first, seed, 2)["curve"] for seed in (0, 1)]
    assert [(number, result["curve"]) for number, result in found] == list(enumerate(expected))
    assert counting.begun == [0, 1, 2]


def test_other_races_and_whole_runs_are_not_waited_for(tmp_path: Path) -> None:
    counting = Counting()
    first, second = (make_loop(tmp_path, counting) for _ in range(2))
    entry = [(halved(first), 0)]
    (begun,) = first.run(entry, 1, race="one")  # and is held until the race is over
    with hold_directory(ensure_directory(first.store.place(first.cell(halved(first), 0)))):
        (found,) = second.run(entry, 2, race="another")
    assert found[1]["curve"][:1] == begun[1]["curve"]
    assert counting.begun == [0, 0]


def test_what_a_process_has_begun_comes_first(tmp_path: Path) -> None:
    loop = make_loop(tmp_path)
    train_to(loop, 1, 1)
    entries = [(halved(loop), seed) for seed in (0, 1)]
    assert [number for number, _ in loop.run(entries, 2)] == [1, 0]


def test_what_a_process_has_begun_is_taken_over_when_it_ends(tmp_path: Path) -> None:
    counting = Counting()
    first, second = (make_loop(tmp_path, counting) for _ in range(2))
    begun = train_to(first, 0, 1)["curve"]
    first.close()  # as the system does when a process ends
    assert train_to(second, 0, 2)["curve"][:1] == begun
    assert counting.begun == [0, 0]


def unseeded(model: nn.Module) -> Iterator[float]:
    yield 0.5


@pytest.mark.parametrize(
    ("train", "taken"), [(unseeded, r"unseeded\(model\)"), (build, r"build\(\)")]
)
def test_a_training_takes_a_model_and_a_seed(train: Any, taken: str) -> None:
    with pytest.raises(UsageError, match=f"must take a model and a seed, got {taken}; let it be"):
        check_loop(train, 10)


def with_rate(model: nn.Module, seed: int, rate: float) -> Iterator[float]:
    yield rate


@pytest.mark.parametrize(
    "train", [partial(with_rate, rate=0.1), reporting(lambda model, seed, report: None)]
)
def test_what_takes_them_otherwise_is_a_training_too(train: Any) -> None:
    check_loop(train, 10)


def test_a_whole_run_is_read_not_trained_again(tmp_path: Path) -> None:
    loop = make_loop(tmp_path)
    whole = loop.store.require(loop.cell(halved(loop), 0), loop)

    def never(model: nn.Module, seed: int) -> Iterator[float]:
        raise AssertionError

    assert train_to(make_loop(tmp_path, never), 0, 3)["curve"] == whole["curve"][:3]


def test_a_whole_run_of_other_code_is_said_to_be_so_or_trained_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, now = ([{"metric": value}] * 2 for value in (0.1, 0.9))
    old = make_loop(tmp_path, lambda model, seed: iter(before), code="old")
    for seed in (0, 1):
        old.store.require(old.cell(halved(old), seed), old)
    new = make_loop(tmp_path, lambda model, seed: iter(now), code="new")
    assert [train_to(new, seed, 1)["curve"] for seed in (0, 1)] == [before[:1]] * 2
    (warned,) = (record.getMessage() for record in caplog.records)
    assert warned.startswith(f"trainings in '{tmp_path}' were computed by another version")
    again = make_loop(tmp_path, lambda model, seed: iter(now), code="new", recompute=True)
    assert train_to(again, 0, 1)["curve"] == now[:1]
    assert len(caplog.records) == 1


def test_what_diverges_later_has_not_diverged_yet(tmp_path: Path) -> None:
    def diverges(model: nn.Module, seed: int) -> Iterator[float]:
        yield from (0.5, 0.6, float("nan"))

    loop = make_loop(tmp_path, diverges)
    loop.store.require(loop.cell(halved(loop), 0), loop)
    before, after = (train_to(loop, 0, check_ins) for check_ins in (2, 3))
    assert (before["outcome"], len(before["curve"]), "reason" in before) == ("trained", 2, False)
    assert (after["outcome"], len(after["curve"])) == ("diverged", 2)
    assert after["reason"] == "metric is nan at check-in 3"


def test_all_trainings_are_closed_also_if_one_fails(tmp_path: Path, caplog: Any) -> None:
    closed: list[int] = []

    def fails(model: nn.Module, seed: int) -> Iterator[float]:
        try:
            yield 0.5
        finally:
            closed.append(seed)
            raise ValueError("the disk is full")

    loop = make_loop(tmp_path, fails)
    for seed in (0, 1, 2):
        train_to(loop, seed, 1)
    loop.close()
    assert sorted(closed) == [0, 1, 2]
    assert caplog.text.count("closed at a check-in, fails: ValueError: the disk is full") == 3


def test_random_numbers_outside_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    loop = make_loop(tmp_path)
    alive = halved(loop)
    torch.manual_seed(5)
    list(loop.run([(alive, 0)], 1))
    assert torch.equal(torch.rand(3), expected)


def test_a_training_that_diverges_ends_there(tmp_path: Path) -> None:
    def diverges(model: nn.Module, seed: int) -> Iterator[float]:
        yield 0.5
        yield float("nan")
        raise AssertionError

    loop = make_loop(tmp_path, diverges)
    result = loop.store.require(loop.cell(halved(loop), 0), loop)
    assert result["outcome"] == "diverged"
    assert result["curve"] == [{"metric": 0.5}]
    assert result["reason"] == "metric is nan at check-in 2"


def wrong(yielded: Any) -> Any:
    def train(model: nn.Module, seed: int) -> Iterator[Any]:
        yield yielded

    return train


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (wrong("high"), "a number, or numbers by name"),
        (wrong(None), "a number, or numbers by name, got None"),
        (wrong({"loss": 0.5}), "a metric besides the loss"),
        (wrong({"train_loss": 0.5, "dice": 0.4}), "a metric first, .* got 'train_loss'"),
        (
            lambda model, seed: iter([{"dice": 1}, {"auc": 1, "dice": 1}]),
            "got auc, dice after dice",
        ),
        (
            lambda model, seed: iter([{"dice": 1, "loss": 1}, {"dice": 1}]),
            "got dice after dice, loss",
        ),
        (lambda model, seed: {"dice": 0.5}, "must yield a metric at every check-in, got dict"),
        (lambda model, seed: 0.5, "must yield a metric at every check-in, got float"),
        (lambda model, seed: iter(()), r"must yield \(or report\) at least once"),
    ],
)
def test_what_is_no_training_function_is_refused(tmp_path: Path, train: Any, message: str) -> None:
    loop = make_loop(tmp_path, train)
    with pytest.raises(UsageError, match=message):
        loop.store.require(loop.cell(halved(loop), 0), loop)


def test_errors_of_the_users_code_name_its_line() -> None:
    def fails(model: nn.Module, seed: int) -> Iterator[float]:
        yield 0.5
        raise ValueError("no such file")

    training = Training(fails, build, 0)
    line = fails.__code__.co_firstlineno + 2
    with pytest.raises(UsageError, match=rf"ValueError: no such file \(test_loops.py:{line}\)"):
        training.advance(None)


def test_a_training_function_that_ends_the_process_fails() -> None:
    def leaves(model: nn.Module, seed: int) -> Iterator[float]:
        yield 0.5
        raise SystemExit(3)

    with pytest.raises(UsageError, match=r"the training function fails: SystemExit: 3"):
        Training(leaves, build, 0).advance(None)


def test_a_training_function_that_cannot_be_closed_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def stays(model: nn.Module, seed: int) -> Iterator[float]:
        for _ in range(2):
            with suppress(BaseException):
                yield 0.5

    training = Training(stays, build, 0)
    training.advance(1)
    training.close()
    (warning,) = caplog.messages
    assert "closed at a check-in, fails: RuntimeError: generator ignored GeneratorExit" in warning


def test_a_training_that_ends_before_the_race_does_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = make_loop(tmp_path)
    for seed in (0, 1):
        assert len(train_to(loop, seed, 8)["curve"]) == 4
    assert [record.getMessage() for record in caplog.records] == [
        "the training function ended at check-in 4, but the race goes to 8; give as length how "
        "often it yields, and let no training stop early"
    ]
