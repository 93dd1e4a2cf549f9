from __future__ import annotations

import inspect
from typing import Any

import pytest
from torch import nn

from ranp.slimming import Plan
from tests.cli import factories

FACTORIES = "tests.cli.factories"
RACE = (
    *("race", "--network", f"{FACTORIES}:wide", "--input", "1,1,8,8,8"),
    *("--budget", "flops=20%", "--length", 8, "--cost", 1),
)


def test_a_race_from_the_command_line_goes_on_and_ends_with_a_plan(ranp, tmp_path):
    data = ("--data", f"{FACTORIES}:batches", "--loss", "torch.nn.functional:cross_entropy")
    arguments = (*RACE, "--train", f"{FACTORIES}:train", *data, "--out", tmp_path)
    first = ranp(*arguments)
    assert first.code == 0, first.err
    assert "at most " in first.err and "of the training that follows" in first.err
    plan = Plan.load(tmp_path / "plan.json")
    assert f"{plan.method} wins" in first.out
    (hint,) = [line for line in first.err.splitlines() if line.startswith("Next: in Python, ")]
    after: dict[str, Any] = {}
    exec(hint.removeprefix("Next: in Python, "), after)
    kept = [len(layer.kept) for layer in plan.layers.values()]
    assert [m.out_channels for m in after["model"] if isinstance(m, nn.Conv3d)] == kept
    records = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/record.json")}
    again = ranp(*arguments, "--json", "--quiet")
    assert again.err == ""
    assert again.json["winner"] == plan.method
    assert again.json["spent"] <= again.json["stated"] <= 1
    assert {path: path.stat().st_mtime_ns for path in records} == records


@pytest.mark.parametrize("rise", [0.0, 0.1])
def test_a_race_in_which_nobody_learned_ends_with_a_caution(ranp, tmp_path, monkeypatch, rise):
    def train(model, seed):
        yield from ({"dice": number * rise, "loss": 1.0} for number in range(8))

    monkeypatch.setattr(factories, "train", train)
    arguments = (*RACE, "--candidates", "thin,power:0.5", "--train", f"{FACTORIES}:train")
    outcome = ranp(*arguments, "--out", tmp_path)
    assert outcome.code == 0, outcome.err
    caution = "The dice has not risen: it is at most 0 at the last rung, and was up to 0 at the"
    assert (f"Caution: {caution}" in outcome.err) == (not rise)
    assert (caution in (tmp_path / "race.html").read_text("utf-8")) == (not rise)


TWO = (
    *("--network", f"{FACTORIES}:TwoInputs", "--train", f"{FACTORIES}:train_two_inputs"),
    *("--data", f"{FACTORIES}:named_batches", "--forward", f"{FACTORIES}:forward"),
    *("--budget", "flops=50%", "--cost", "400%"),
)


def test_several_inputs_and_outputs_race_by_a_forward(ranp, tmp_path):
    race = ("race", *TWO, "--length", 8, "--candidates", "ranp-f,thin")
    outcome = ranp(*race, "--out", tmp_path, "--json")
    assert outcome.code == 0, outcome.err
    assert list(outcome.json["widths"])[:2] == ["ranp-f", "thin"]
    slim = Plan.load(tmp_path / "plan.json").apply(factories.TwoInputs())
    assert factories.forward(slim, factories.named_batches()[0]).isfinite()
    benched = ranp("bench", tmp_path / "plan.json", "--network", f"{FACTORIES}:TwoInputs")
    assert benched.code == 2
    assert "must be for a network with one input, got 0 and 2 by name" in benched.err


def test_several_inputs_and_outputs_are_compared_by_a_forward(ranp, tmp_path):
    compare = ("compare", *TWO, "--seeds", 1, "--methods", "full,ranp-f")
    outcome = ranp(*compare, "--out", tmp_path, "--json")
    assert outcome.code == 0, outcome.err
    (budget,) = outcome.json["budgets"]
    full, slim = (row["means"] for row in budget["rows"])
    assert full["parameters"] == 12 * (27 + 1) + 12 * (54 + 1) + 2 * (24 + 1) + 2 * (12 + 1)
    assert 0.4 * full["gflops"] < slim["gflops"] <= 0.5 * full["gflops"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--loss", f"{FACTORIES}:half_loss"), "give one of --loss and --forward"),
        (("--forward", f"{FACTORIES}:forwrd"), "has no 'forwrd'. Did you mean 'forward'?"),
        (("--forward", f"{FACTORIES}:NOT_A_FUNCTION"), "must be a function, got int"),
        (("--forward", f"{FACTORIES}:half_loss"), "forward(model, batch) fails: "),
    ],
)
def test_a_forward_that_is_none_is_refused(ranp, tmp_path, options, message):
    outcome = ranp("race", *TWO, "--length", 8, *options, "--out", tmp_path)
    assert outcome.code == 2
    assert message in outcome.err


def test_an_error_of_the_training_function_names_its_line(ranp, tmp_path):
    arguments = (*RACE, "--cost", 2, "--train", f"{FACTORIES}:train_badly")  # it fails after one
    outcome = ranp(*arguments, "--out", tmp_path)
    line = inspect.getsourcelines(factories.train_badly)[1] + 2
    assert outcome.code == 2
    assert f"ValueError: the disk is full (factories.py:{line})" in outcome.err


def test_data_needs_a_loss(ranp, tmp_path):
    arguments = (*RACE, "--train", f"{FACTORIES}:train", "--data", f"{FACTORIES}:batches")
    outcome = ranp(*arguments, "--out", tmp_path)
    assert outcome.code == 2
    assert "give --data and --loss" in outcome.err


@pytest.mark.parametrize("command", [RACE, ("compare", *RACE[1:], "--methods", "thin,random")])
@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_says_how_to_go_on(ranp, tmp_path, monkeypatch, command, number, code):
    monkeypatch.setenv("TEST_SIGNAL", number)
    arguments = (
        *command,
        "--cost",
        3,
        "--train",
        f"{FACTORIES}:train_signalled",
        "--out",
        tmp_path,
    )
    stopped = ranp(*arguments)
    assert stopped.code == code
    assert stopped.err.endswith("ranp: stopped; to continue, run the same command\n")
    assert "caught" not in stopped.out
    monkeypatch.delenv("TEST_SIGNAL")
    assert ranp(*arguments).code == 0


def test_names_of_candidates_may_have_spaces_around_them(ranp, tmp_path):
    arguments = (*RACE, "--train", f"{FACTORIES}:train", "--out", tmp_path)
    outcome = ranp(*arguments, "--candidates", "thin, power:0.25", "--json")
    assert outcome.code == 0, outcome.err
    assert list(outcome.json["widths"])[:2] == ["thin", "power:0.25"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--train", f"{FACTORIES}:NOT_A_FUNCTION"), "NOT_A_FUNCTION' must be a function, got int"),
        (("--train", FACTORIES), f"must be named package.module:name, got '{FACTORIES}'"),
        (("--train", f"{FACTORIES}:train", "--input", ""), "give --input 1,1,64,64,64"),
    ],
)
def test_what_cannot_be_trained_is_refused(ranp, tmp_path, options, message):
    outcome = ranp(*RACE, *options, "--out", tmp_path)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_comparison_of_what_diverges_names_no_page_that_is_not_there(ranp, tmp_path):
    budget = ("--budget", "params=50%", "--methods", "thin", "--seeds", 1)
    arguments = ("compare", *RACE[1:5], *budget, "--train", f"{FACTORIES}:train_diverging")
    outcome = ranp(*arguments, "--out", tmp_path)
    assert outcome.code == 0, outcome.err
    assert "thin has no result at this budget" in outcome.out
    assert outcome.out.startswith("15,961 parameters, 50 % of the full network")
    assert "comparison.html" not in outcome.err
    assert not (tmp_path / "comparison.html").exists()
