from __future__ import annotations

import inspect
from typing import Any

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
