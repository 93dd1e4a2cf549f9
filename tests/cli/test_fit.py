"""`ranp fit` on the command line."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import pytest

from ranp.slimming import Plan
from tests.cli import factories

SMALL = ("fit", "tests.cli.factories:small", "--data", "tests.cli.factories:batches")
LAYERWISE = ("--method", "layerwise", "--quiet")
STEP = ("--input", "1,24,24,24", "--batch", "2", "--device", "cpu")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def test_json_says_what_was_found(ranp):
    full = ranp(*SMALL, *STEP, "--memory", "1GiB", "--json")
    assert full.code == 0 and full.json["sparsity"] == 0 and full.json["binding"] is None
    budget = int(0.8 * full.json["predicted_peak_bytes"])
    done = ranp(*SMALL, *STEP, "--memory", budget, "--json")
    found = done.json
    assert done.code == 0 and found["feasible"]
    assert found["budget_bytes"] == budget and found["binding"] == "memory"
    assert 0.6 * budget < found["predicted_peak_bytes"] <= budget
    assert 0 < found["sparsity"] < 1
    assert found["slim"]["neurons"] < found["full"]["neurons"] == 16
    assert found["step"] == {
        "batch": 2,
        "input": [1, 24, 24, 24],
        "optimizer": "adam",
        "precision": "32",
        "recompute": False,
        "device": "cpu",
    }
    assert found["alternatives"] == sorted(found["alternatives"], key=lambda a: a["sparsity"])
    assert "Next:" in done.err


def test_the_result_is_written(ranp, tmp_path):
    out = tmp_path / "out"
    done = ranp(*SMALL, *STEP, "--params", "800", "--out", out)
    assert done.code == 0 and "params (800) binds" in done.out
    names = {path.name for path in out.iterdir()}
    assert names >= {
        *("plan.json", "pruning.json", "report.html"),
        *("scores.safetensors", "weights.safetensors"),
    }
    slim = Plan.load(out / "plan.json").apply(factories.small())
    assert sum(p.numel() for p in slim.parameters()) <= 800
    assert 'id="timeline"' in (out / "report.html").read_text()


@pytest.fixture
def warnings_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As outside of tests: to stderr, in the form that the command line gives them."""

    def show(message, category, filename, lineno, file=None, line=None) -> None:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))

    monkeypatch.setattr("warnings.showwarning", show)
    warnings.simplefilter("default")  # until the end of the test


@pytest.mark.usefixtures("warnings_are_printed")
def test_a_loss_that_decides_by_values_is_warned_of_in_one_line_that_names_it(ranp):
    loss = ("--loss", "tests.cli.factories:deciding_loss")
    done = ranp(*SMALL, *loss, *STEP, "--memory", "95%", *LAYERWISE)
    assert done.code == 0
    (warning,) = done.err.splitlines()
    assert re.match(
        r"ranp: warning: The memory of the loss could not be predicted: .* values of tensors "
        r"\(factories.py:\d+\)\. A margin of ",
        warning,
    )


@pytest.mark.usefixtures("warnings_are_printed")
def test_a_warning_of_another_package_says_where_it_is_from(ranp):
    done = ranp("fit", "tests.cli.factories:warns", *STEP, "--params", "800", *LAYERWISE)
    assert done.code == 0
    assert done.err == "/site-packages/other.py:7: UserWarning: careful\n"


def test_stored_scores_are_used(ranp, tmp_path):
    scores = tmp_path / "scores.safetensors"
    ranp("score", *SMALL[1:], "--input", "1,1,8,8,8", "--out", scores)
    again = ranp(*SMALL[:2], *STEP, "--scores", scores, "--params", "800", "--json")
    anew = ranp(*SMALL, *STEP, "--params", "800", "--json")
    assert again.code == anew.code == 0
    assert again.json["layers"] == anew.json["layers"]


def test_what_cannot_be_reached_ends_with_3(ranp):
    done = ranp(*SMALL, *STEP, "--memory", "100KiB", "--json")
    assert done.code == 3
    assert not done.json["feasible"]
    assert done.json["nearest"]["figures"]["memory"] > 100 * 1024
    assert "the closest takes" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (STEP, "give at least one budget: memory, flops, params, latency"),
        ((*STEP, "--memory", "8 apples"), "must be an amount such as 8GiB or 50%, got '8 apples'"),
        ((*STEP, "--flops", "-3G"), "must be positive"),
        ((*STEP, "--memory", "1GiB", "--batch", "0"), "batch"),
        ((*STEP, "--memory", "1GiB", "--precision", "8"), "precision"),
    ],
)
def test_wrong_arguments_end_with_2(ranp, arguments, words):
    done = ranp(*SMALL, *arguments)
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1


def test_the_batch_is_that_of_ones_own_loader(ranp):
    pairs = ("--data", "tests.cli.factories:pairs_of_two", "--flops", "100%", "--json")
    own = ("fit", "tests.cli.factories:small", "--input", "1,8,8,8", *pairs)
    assert ranp(*own).json["step"]["batch"] == 2
    assert ranp(*own, "--batch", "3").json["step"]["batch"] == 3


@pytest.mark.parametrize("scores", [(), ("--method", "thin")])
def test_the_input_is_that_of_ones_own_loader(ranp, scores):
    """So is the loss: its memory is part of the budget, whether or not there is scoring to do."""
    own = ("fit", SMALL[1], "--data", "tests.cli.factories:pairs_of_two", *scores)
    loss = ("--loss", "tests.cli.factories:half_loss")
    found = ranp(*own, *loss, "--memory", "1GiB", "--device", "cpu", "--json").json
    assert (found["step"]["input"], found["step"]["batch"]) == ([1, 8, 8, 8], 2)
    assert found["loss"] == "half_loss"


def test_without_a_loader_the_input_must_be_said(ranp):
    done = ranp("fit", SMALL[1], "--method", "thin", "--memory", "1GiB")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "give the input shape of 'tests.cli.factories:small'" in done.err


def test_a_missing_directory_is_called_missing_before_an_input(ranp):
    done = ranp("fit", SMALL[1], "--data", "nowhere", "--memory", "1GiB")
    assert done.code == 2 and "data directory 'nowhere' does not exist" in done.err


def test_an_input_may_have_its_batch(ranp):
    done = ranp(*SMALL, "--flops", "100%", "--input", "3,1,8,8,8", "--json")
    assert done.json["step"]["batch"] == 3 and done.json["step"]["input"] == [1, 8, 8, 8]
    refused = ranp(*SMALL, "--flops", "100%", "--input", "3,1,8,8,8", "--batch", "2")
    assert refused.code == 2 and "give 1,8,8,8" in refused.err


def test_a_network_of_the_paper_is_scored_small(ranp):
    done = ranp(
        *("fit", "mobilenetv2-ucf101", "--memory", "150MiB", "--input", "3,8,64,64"),
        *("--samples", "1", "--device", "cpu", "--json"),
    )
    assert done.code == 0 and done.json["sparsity"] == 0
    assert done.json["scored_with"].startswith("1 samples of synthetic ucf101")


@pytest.mark.slow
def test_brats_in_8_gib(ranp):
    done = ranp(
        *("fit", "unet3d-brats", "--memory", "8GiB", "--batch", "2"),
        *("--input", "4,128,128,128", "--device", "cpu", "--json"),
    )
    found = done.json
    assert done.code == 0
    assert found["budget_bytes"] == 8 * 2**30
    assert 0.9 * 8 * 2**30 <= found["predicted_peak_bytes"] <= 8 * 2**30
    assert found["alternatives"][0]["sparsity"] == 0
