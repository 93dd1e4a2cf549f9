from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ranp.files import read_sealed_json
from tests.training.conftest import crops as _crops
from tests.training.networks import Dropped

crops = _crops  # a fixture
RECIPE = "hippocampus-unet3d"
SMALL = (
    *("--recipe", RECIPE, "--smoke"),
    *("--set", "network.options.base_width=4", "--set", "checkpoint_minutes=0"),
)


def test_a_comparison_from_the_command_line(ranp, crops, tmp_path):
    out = tmp_path / "out"
    arguments = ("compare", *SMALL, "--data", crops, "--out", out, "--seeds", 2)
    arguments += ("--methods", "full,ranp-f,flat", "--budget", "gflops=30%", "--set", "epochs=1")
    first = ranp(*arguments)
    assert first.code == 0
    assert "30 % of the full network" in first.out
    assert "2 seeds support" in " ".join(first.out.split())
    assert "run 1 of 6: full, seed 0\n" in first.err
    assert "run 6 of 6: layerwise at gflops" in first.err and " left\n" in first.err
    assert f"Next: open {out}/comparison.html" in first.err
    runs = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/record.json")}
    assert len(runs) == 6 + 2  # and the scores of two seeds

    again = ranp(*arguments, "--json", "--quiet")
    assert again.err == ""
    assert {path: path.stat().st_mtime_ns for path in out.glob("cells/*/record.json")} == runs
    files = [Path(name) for name in again.json["files"]]
    assert [path.name for path in files] == [
        *("comparison.md", "comparison.csv", "runs.csv", "comparison.json", "comparison.html"),
        "comparison.svg",
    ]
    assert all(path.stat().st_size for path in files)
    stored = read_sealed_json(out / "comparison.json", "comparison")
    assert stored == {key: value for key, value in again.json.items() if key != "files"}
    rows = {row["method"]: row for row in stored["budgets"][0]["rows"]}
    # A budget is never exceeded, and one neuron of so small a network is a quarter of this one.
    assert -0.25 < rows["ranp-f"]["means"]["deviation"] <= 0
    assert rows["full"]["means"]["gflops"] == stored["full"]["gflops"]
    assert rows["flat"]["same_as"] == "layerwise"


def test_a_network_of_ones_own(ranp, crops, tmp_path):
    arguments = ("compare", "--recipe", RECIPE, "--smoke", "--data", crops, "--out", tmp_path)
    own = ("--network", "tests.training.networks:Dropped", "--methods", "random", "--seeds", 1)
    outcome = ranp(*arguments, *own, "--set", "epochs=1", "--budget", "params=50%", "--json")
    assert outcome.code == 0
    (row,) = outcome.json["budgets"][0]["rows"]
    parameters = sum(p.numel() for p in Dropped().parameters())
    assert outcome.json["full"]["parameters"] == parameters
    assert parameters / 4 < row["means"]["parameters"] <= parameters / 2  # of 127, few neurons
    assert outcome.json["reference"] == "random"


def test_row_36_plans_scores_and_runs_of_two_cells(ranp, crops, tmp_path):
    arguments = ("compare", *SMALL, "--data", crops, "--out", tmp_path, "--set", "epochs=1")
    arguments += ("--network", "tests.training.networks:Normed", "--budget", "gflops=60%")
    arguments += ("--seeds", 2, "--quiet", "--methods", "ranp-f")
    assert ranp(*arguments).code == 0
    # Scores are read when another method needs them.
    uses = {"plan.json": "ranp-f", "run": "ranp-f", "scores.safetensors": "weighted"}
    for name, method in uses.items():
        pair = list(tmp_path.glob(f"cells/*/{name}"))
        swap(*pair)
        outcome = ranp(*arguments[:-1], method)
        assert outcome.code == 4 and outcome.err.count("\n") == 1
        assert name in outcome.err and "belongs to another cell" in outcome.err
        swap(*pair)
    assert ranp(*arguments).code == 0

    # Killed in training there is no record yet; plan and run fit together, the cell does not.
    places = [path.parent for path in tmp_path.glob("cells/*/plan.json")]
    for place in places:
        (place / "record.json").unlink()
    for name in ("plan.json", "run"):
        swap(*(place / name for place in places))
    outcome = ranp(*arguments)
    assert outcome.code == 4 and "plan.json' belongs to another cell" in outcome.err


def swap(one, other):
    one.rename(one.with_name("aside"))
    other.rename(one)
    one.with_name("aside").rename(other)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--budget", "gflops=200%"), "must be at most 100%"),
        (("--budget", "flops=900GFLOPs"), "keeps it without pruning"),
        (("--budget", "watts=3"), "write flops=10%"),
        (("--methods", "full"), "at least one method that prunes"),
        (("--methods", "full,ramp-f"), "Did you mean 'ranp-f'"),
        (("--set", "epoch=3"), "unknown key 'epoch'"),
        (("--seeds", "0"), "--seeds"),
        (("--data", "nowhere"), "data directory 'nowhere' does not exist"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(ranp, crops, tmp_path, arguments, reason):
    outcome = ranp("compare", *SMALL, "--data", crops, "--out", tmp_path / "out", *arguments)
    assert outcome.code == 2
    assert reason in outcome.err and outcome.err.count("\n") == 1 and outcome.out == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_half_way_it_goes_on_and_computes_nothing_twice(ranp, crops, tmp_path, number):
    out = tmp_path / "out"
    arguments = ["compare", *SMALL, "--data", str(crops), "--out", str(out), "--seeds", "1"]
    arguments += ["--methods", "ranp-f,layerwise", "--budget", "gflops=30%", "--set", "epochs=8"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ranp", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    # Until the second run is in an epoch of its own.
    while (
        len(lines := list(map(count_lines, out.glob("cells/*/run/metrics.jsonl")))) < 2
        or min(lines) < 2
    ):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    if number == signal.SIGTERM:
        assert process.returncode == 143
        assert "to continue, run the same command" in said.splitlines()[-1]
    (whole,) = [p for p in out.glob("cells/*/record.json") if (p.parent / "run").exists()]
    before = whole.stat().st_mtime_ns

    assert ranp(*arguments).code == 0
    assert whole.stat().st_mtime_ns == before
    for log in out.glob("cells/*/run"):
        lines = (log / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 9))
        # No epoch was trained to its end twice; a kill may come between an epoch and its line.
        assert (log / "log.txt").read_text().count("loss") in (7, 8)
    resumed = [log for log in out.glob("cells/*/run/log.txt") if "continues at" in log.read_text()]
    assert len(resumed) == 1 and resumed[0].parent.parent != whole.parent


def count_lines(path: Path) -> int:
    return path.read_text().count("\n")


def test_ones_own_loop_from_the_command_line(ranp, tmp_path):
    factories = "tests.cli.factories"
    arguments = ("compare", "--network", f"{factories}:wide", "--train", f"{factories}:train")
    arguments += ("--data", f"{factories}:batches", "--loss", "torch.nn.functional:cross_entropy")
    arguments += ("--methods", "full,thin,ranp-f,race", "--budget", "flops=20%", "--seeds", 2)
    arguments += ("--length", 8, "--cost", 1, "--out", tmp_path)
    first = ranp(*arguments)
    assert first.code == 0, first.err
    assert "race is " in " ".join(first.out.split())
    assert re.search("points (above|below) thinning by hand", " ".join(first.out.split()))
    assert "run 1 of " in first.err
    page = (tmp_path / "comparison.html").read_text()
    assert f"{factories}:train" in page
    again = ranp(*arguments, "--json", "--quiet")
    assert again.err == ""
    assert again.json["complete"] == again.json["cells"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--train", "a:b"), "give --network"),
        (("--train", "a:b", "--recipe", RECIPE), "give one of them"),
        ((), "give --recipe, or --network and --train"),
    ],
)
def test_a_recipe_or_a_loop_is_named(ranp, options, message):
    outcome = ranp("compare", *options)
    assert outcome.code == 2
    assert message in outcome.err
