"""Trainers that own their loop, as training functions."""

from __future__ import annotations

import threading
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


def test_an_error_while_closing_is_not_lost() -> None:
    @ranp.reporting
    def train(model: nn.Module, seed: int, report: Any) -> None:
        try:
            report(0.5)
        finally:
            raise ValueError("the disk is full")

    training = Training(train, toy.build, 0)
    training.advance(1)
    with pytest.raises(UsageError, match="closed at a check-in, fails: ValueError: the disk is"):
        training.close()


def test_a_training_keeps_its_name() -> None:
    assert training_name(reports) == f"{__name__}:reports"


def test_a_function_that_yields_is_refused() -> None:
    with pytest.raises(UsageError, match="got yields, which yields; use it as it is"):
        ranp.reporting(yields)
