"""`--forward`: networks with several inputs and outputs, on the command line."""

from __future__ import annotations

import pytest

from ranp import Plan
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
    ],
)
def test_what_a_forward_needs_is_said(ranp, options, message):
    outcome = ranp("prune", NETWORK, *options, "--flops", "50%")
    assert outcome.code == 2
    assert message in outcome.err
