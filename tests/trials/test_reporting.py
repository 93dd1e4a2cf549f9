"""Trainers that own their loop, as training functions."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import ranp
from ranp.errors import UsageError
from ranp.trials.loops import Training, training_name
from tests import toy

LENGTH = 6


def yields(model: nn.Module, seed: int) -> Any:
    yield from toy.check_ins(model, LENGTH)


@ranp.reporting
def reports(model: nn.Module, seed: int, report: Any) -> None:
    for line in toy.check_ins(model, LENGTH):
        report(line)


def advance_in_turns(train: Any) -> list[list[dict[str, float]]]:
    trainings = [Training(train, toy.build, seed) for seed in (0, 1)]
    for check_ins in (1, 3, None):
        for training in trainings:
            training.advance(check_ins)
    assert all(training.ended for training in trainings)
    return [training.curve for training in trainings]


def test_what_is_reported_is_what_would_be_yielded_also_in_turns() -> None:
    before = threading.active_count()
    assert advance_in_turns(reports) == advance_in_turns(yields)
    assert threading.active_count() == before


def test_a_thread_computes_with_as_many_threads_as_the_process() -> None:
    @ranp.reporting
    def train(model: nn.Module, seed: int, report: Any) -> None:
        report(torch.get_num_threads())

    assert list(train(toy.build(), 0)) == [torch.get_num_threads()]


def test_a_race_by_reports_is_the_race_by_yields(tmp_path: Any) -> None:
    options: dict[str, Any] = {"budget": {"flops": "30%"}, "length": LENGTH, "cost": 3}
    options |= {"candidates": ("thin", "power:0.5", "power:-0.5"), "example_input": toy.SHAPE}
    options |= {"tell": lambda line: None}
    before = threading.active_count()
    first, second = (
        ranp.race(toy.build, train, out=tmp_path / train.__name__, **options)
        for train in (yields, reports)
    )
    assert second.curves == first.curves
    assert second.winner == first.winner
    assert threading.active_count() == before  # those that were dropped have ended


def test_a_training_that_is_dropped_closes_what_it_opened() -> None:
    seen: list[str] = []

    @ranp.reporting
    def train(model: nn.Module, seed: int, report: Any) -> None:
        try:
            for _ in range(3):
                try:
                    report(0.5)
                except Exception:
                    seen.append("taken for a failure")
        finally:
            seen.append("closed")
            report(0.7)  # as callbacks at the end of a trainer do

    training = Training(train, toy.build, 0)
    training.advance(2)
    training.close()
    assert seen == ["closed"]
    assert training.curve == [{"metric": 0.5}] * 2


@pytest.mark.parametrize("after", [0, 2])
def test_an_error_is_the_users_and_names_its_line(after: int) -> None:
    @ranp.reporting
    def train(model: nn.Module, seed: int, report: Any) -> None:
        for _ in range(after):
            report(0.5)
        raise ValueError("the disk is full")

    with pytest.raises(UsageError, match=r"the disk is full \(test_reporting.py:\d+\)"):
        Training(train, toy.build, 0).advance(None)


def test_a_race_ends_though_its_trainings_cannot_be_closed(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @ranp.reporting
    def train(model: nn.Module, seed: int, report: Any) -> None:
        try:
            reports.__wrapped__(model, seed, report)  # type: ignore[attr-defined]
        finally:
            raise IndexError("pop from empty list")  # Lightning's progress bar, if there are two

    before = threading.active_count()
    race = ranp.race(
        toy.build,
        train,
        budget={"flops": "30%"},
        length=2 * LENGTH,
        candidates=("thin", "power:0.5"),
        cost=1,
        example_input=toy.SHAPE,
        out=tmp_path,
        tell=lambda line: None,
    )
    assert list(race.widths)[:2] == ["thin", "power:0.5"]
    assert len(caplog.messages) == sum(map(len, (race.curves, race.again)))
    assert threading.active_count() == before


def test_an_interrupted_training_closes_what_it_opened() -> None:
    seen: list[str] = []

    @ranp.reporting
    def train(model: nn.Module, seed: int, report: Any) -> None:
        report(0.5)
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while True:
                time.sleep(0.001)
        except Exception:
            seen.append("taken for a failure")
        finally:
            seen.append("closed")

    before = threading.active_count()
    training = Training(train, toy.build, 0)
    with pytest.raises(KeyboardInterrupt):
        training.advance(None)
    assert seen == ["closed"]
    assert threading.active_count() == before


def test_a_training_that_waits_is_ended_by_a_signal_too() -> None:
    seen: list[str] = []

    @ranp.reporting
    def train(model: nn.Module, seed: int, report: Any) -> None:
        try:
            report(0.5)
        finally:
            seen.append("closed")

    before = threading.active_count()
    lines = train(toy.build(), 0)
    next(lines)
    with pytest.raises(KeyboardInterrupt):
        lines.throw(KeyboardInterrupt)  # the signal comes just when it has reported
    assert seen == ["closed"]
    assert threading.active_count() == before


def test_a_thread_has_the_default_device_of_the_one_that_races() -> None:
    @ranp.reporting
    def train(model: nn.Module, seed: int, report: Any) -> None:
        report(torch.zeros(1).device.type)

    torch.set_default_device("meta")
    try:
        assert list(train(toy.build(), 0)) == ["meta"]
    finally:
        torch.set_default_device(None)
    assert list(train(toy.build(), 0)) == ["cpu"]


def test_a_loss_that_requires_a_gradient_is_a_number(
    recwarn: pytest.WarningsRecorder,
) -> None:
    @ranp.reporting
    def train(model: nn.Module, seed: int, report: Any) -> None:
        report({"accuracy": 0.5, "loss": torch.tensor(0.25, requires_grad=True)})

    training = Training(train, toy.build, 0)
    training.advance(None)
    assert training.curve == [{"accuracy": 0.5, "loss": 0.25}]
    assert not recwarn.list


def rated(model: nn.Module, seed: int, report: Any, rate: float = 0.1) -> None:
    report(rate)


class Rated:
    def __call__(self, model: nn.Module, seed: int, report: Any) -> None:
        report(0.3)


def test_a_training_keeps_its_name() -> None:
    assert training_name(reports) == f"{__name__}:reports"
    assert training_name(ranp.reporting(Rated())) == f"{__name__}:Rated"


def test_settings_of_a_partial_are_passed_on_and_part_of_the_name() -> None:
    before = ranp.reporting(partial(rated, rate=0.2))
    after = partial(ranp.reporting(rated), rate=0.2)
    assert training_name(before) == training_name(after) == f"{__name__}:rated(rate=0.2)"
    assert list(before(toy.build(), 0)) == list(after(toy.build(), 0)) == [0.2]


@ranp.reporting
def rated_first(rate: float, model: nn.Module, seed: int, report: Any) -> None:
    report(rate * (seed + 1))


class Owner:
    rate = 0.2

    @ranp.reporting
    def train(self, model: nn.Module, seed: int, report: Any) -> None:
        report(self.rate * (seed + 1))


@pytest.mark.parametrize("train", [partial(rated_first, 0.2), Owner().train])
def test_a_training_may_be_a_method_or_have_settings_by_position(train: Any) -> None:
    training = Training(train, toy.build, 1)
    training.advance(None)
    assert training.curve == [{"metric": 0.4}]
    assert list(train(model=toy.build(), seed=0)) == [0.2]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (yields, "got yields, which yields; use it as it is"),
        (partial(yields), r"got yields\(\), which yields; use it as it is"),
        (lambda model, seed: None, r"got .*\(model, seed\); let it take a report"),
        (3, r"train\(model, seed, report\), got int; decorate a function"),
    ],
)
def test_what_takes_no_report_is_refused(train: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ranp.reporting(train)
