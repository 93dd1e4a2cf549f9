"""`--forward`: networks with several inputs and outputs, on the command line."""

from __future__ import annotations

import shlex

import pytest

from ranp import Plan, Scores
from tests.cli import factories

FACTORIES = "tests.cli.factories"
NETWORK = f"{FACTORIES}:TwoInputs"
OWN = ("--data", f"{FACTORIES}:named_batches", "--forward", f"{FACTORIES}:forward")
PARAMETERS = 12 * (27 + 1) + 12 * (54 + 1) + 2 * (24 + 1) + 2 * (12 + 1)


def check_plan(path):
    slim = Plan.load(path).apply(factories.TwoInputs())
    assert factories.forward(slim, factories.named_batches()[0]).isfinite()
    return sum(p.numel() for p in slim.parameters())


@pytest.mark.parametrize("budget", [("--params", "50%"), ("--memory", "90%")])
def test_prune_and_fit_by_a_forward(ranp, tmp_path, budget):
    sizes = []
    for command in ("prune", "fit"):
        out = tmp_path / command
        method = ("--method", "ranp-f", "--floor", 1, "--coupling", "paper")
        outcome = ranp(command, NETWORK, *OWN, *budget, *method, "--out", out, "--json")
        assert outcome.code == 0, outcome.err
        sizes.append(check_plan(out / "plan.json"))
    assert sizes[0] == sizes[1] < PARAMETERS


def test_scores_by_a_forward_become_a_plan(ranp, tmp_path):
    scores, plan = tmp_path / "scores.safetensors", tmp_path / "plan.json"
    assert ranp("score", NETWORK, *OWN, "--out", scores).code == 0
    outcome = ranp("plan", NETWORK, scores, *OWN, "--sparsity", 0.5, "--out", plan)
    assert outcome.code == 0, outcome.err
    assert check_plan(plan) < PARAMETERS


def pasted(outcome, begins):
    (line,) = [line for line in outcome.err.splitlines() if line.startswith(begins)]
    return shlex.split(line.removeprefix(begins))[1:]


def test_hints_name_the_forward_again(ranp, tmp_path):
    scored = ranp("score", NETWORK, *OWN, "--out", tmp_path / "scores.safetensors")
    searched = ranp(*pasted(scored, "Next: "))
    assert searched.code == 0, searched.err
    planned = ranp(*pasted(searched, "Next: "), "--out", tmp_path / "plan.json")
    assert planned.code == 0, planned.err
    assert check_plan(tmp_path / "plan.json") < PARAMETERS


@pytest.mark.parametrize(
    "command",
    [
        ("prune", NETWORK, "--flops", "50%"),
        ("prune", NETWORK, "--sparsity", ".5"),
        ("fit", NETWORK, "--flops", "50%", "--method", "ranp-f"),
        ("search", NETWORK),
    ],
)
def test_what_an_interrupted_command_suggests_scores_the_rest(ranp, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    own = ("--data", f"{FACTORIES}:signalled_named_batches", *OWN[2:])
    monkeypatch.setenv("TEST_SIGNAL", "SIGINT")
    stopped = ranp(*command, *own)
    assert stopped.code == 130, stopped.err
    monkeypatch.delenv("TEST_SIGNAL")
    kept = tmp_path / "interrupted-1.safetensors"
    for batches in (2, 4):
        assert Scores.load(kept).batches == batches
        going_on = ranp(*pasted(stopped, "Continue with what was scored: "), "--json")
        assert going_on.code == 0, going_on.err
        assert going_on.json["settings"]["scoring"]["batches"] == batches
        assert ranp(*pasted(stopped, "Score the rest: ")).code == 0


@pytest.mark.parametrize("command", ["prune", "fit"])
@pytest.mark.parametrize("batches", ["named_batches", "aged_batches"])
def test_another_input_is_that_of_a_sample_or_of_a_batch(ranp, command, batches):
    own = ("--data", f"{FACTORIES}:{batches}", *OWN[2:], "--flops", "50%")
    costs = [
        ranp(command, NETWORK, *own, *given, "--json").json["full"]["gflops"]
        for given in ((), ("--input", "1,16,16,16"), ("--input", "2,1,16,16,16"))
    ]
    assert costs[1] == costs[2] == pytest.approx(8 * costs[0])
    wrong = ranp(command, NETWORK, *own, "--input", "1,16,16")
    assert wrong.code == 2
    assert "--input must have 4 dimensions (channels, then space)" in wrong.err
    assert "got (1, 16, 16); write 1,8,8,8" in wrong.err


def test_inspect_traces_what_a_forward_calls_the_network_with(ranp):
    outcome = ranp("inspect", NETWORK, *OWN, "--json")
    assert {row["name"]: row["removable"] for row in outcome.json["layers"]} == {
        "first": 12,
        "second": 12,
        "head": 0,
        "deep": 0,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*OWN, "--loss", f"{FACTORIES}:half_loss"), "give one of --loss and --forward"),
        (OWN[2:], "--forward is called with batches of your own; give --data"),
        (OWN[:2], "or a forward(model, batch)"),
        (
            (*OWN[:2], "--forward", f"{FACTORIES}:forward_of_a_part"),
            "forward(model, batch) must call the model to tell what it takes",
        ),
    ],
)
def test_what_a_forward_needs_is_said(ranp, options, message):
    outcome = ranp("prune", NETWORK, *options, "--flops", "50%")
    assert outcome.code == 2
    assert message in outcome.err
