from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ranp.api import plan as make_plan
from ranp.slimming import Plan
from ranp.training.config import load_config
from ranp.training.job import Job, claim
from ranp.training.networks import build_network
from ranp.training.run import train
from tests.fresh import start_fresh

ROOT = Path(__file__).parents[2]
RECIPE = "hippocampus-unet3d"
SMALL = ("--smoke", "--set", "network.options.base_width=4", "--set", "epochs=1")


@pytest.fixture(scope="module")
def trained_once(crops, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "full"
    train(Job(load_config(RECIPE, smoke=True, overrides=SMALL[2::2], data=crops), run, crops))
    return run


@pytest.fixture
def trained(trained_once, tmp_path) -> Path:
    """A run that may be changed."""
    return shutil.copytree(trained_once, tmp_path / "runs" / "full")


def snapshot(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_the_record_and_the_table(ranp, crops, tmp_path):
    run = tmp_path / "run"
    arguments = ("train", RECIPE, *SMALL, "--data", crops, "--out", run)
    outcome = ranp(*arguments)
    assert outcome.code == 0
    assert "dice anterior" in outcome.out
    assert "epoch 1/1" in outcome.err
    assert f"Next: ranp evaluate {run}" in outcome.err
    again = ranp(*arguments, "--resume", "auto", "--json", "--quiet")
    assert again.err == ""
    assert again.json["slim"] is None
    assert set(again.json["metrics"]) == {"dice", "dice anterior", "dice posterior"}
    assert set(again.json["metrics"]["dice"]) == {"mean", "std", "last"}
    for key in ("epochs", "seconds", "full", "run", "seed", "data", "versions"):
        assert again.json[key] is not None


def test_an_existing_run_is_not_overwritten(ranp, crops, trained):
    before = snapshot(trained)
    outcome = ranp("train", RECIPE, *SMALL, "--data", crops, "--out", trained)
    assert outcome.code == 2
    assert "holds a run; continue it with --resume auto" in outcome.err
    assert snapshot(trained) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("--set", "optimizer.lr=0.5"), "optimizer.lr is 0.002 there and 0.5 here"),
        (("--method", "random"), "pruning.method is None there and 'random' here"),
        (("--set", "epochs=9"), "epochs is 1 there and 9 here"),
    ],
)
def test_resuming_with_other_settings_is_refused(ranp, crops, trained, changes, message):
    before = snapshot(trained)
    arguments = ("train", RECIPE, *SMALL, "--data", crops, "--out", trained)
    outcome = ranp(*arguments, *changes, "--resume", "auto")
    assert outcome.code == 2
    assert message in outcome.err
    assert snapshot(trained) == before


def test_resuming_with_other_cases_is_refused(ranp, crops, tmp_path):
    run, fewer = tmp_path / "run", tmp_path / "fewer"
    shutil.copytree(crops, fewer)
    changes = {"network.options.base_width": 4, "epochs": 1}
    job = Job(load_config(RECIPE, smoke=True, changes=changes), run, crops)
    claim(job, resume=False)
    from ranp.training.preparation import prepare

    prepare(job)
    for folder in ("imagesTr", "labelsTr"):
        (fewer / folder / "hippocampus_00000.nii.gz").unlink()
    outcome = ranp("train", RECIPE, *SMALL, "--data", fewer, "--out", run, "--resume", "auto")
    assert outcome.code == 4
    assert "was begun with other cases" in outcome.err


def test_a_directory_with_other_things_is_refused(ranp, tmp_path):
    (tmp_path / "thesis.txt").write_text("dear to me")
    outcome = ranp("train", RECIPE, *SMALL, "--out", tmp_path)
    assert outcome.code == 2
    assert "is not empty, and no run" in outcome.err
    outcome = ranp("train", RECIPE, *SMALL, "--out", tmp_path / "thesis.txt" / "run")
    assert outcome.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_data_of_the_wrong_kind(ranp, crops, tmp_path):
    outcome = ranp("train", "shapenet-unet3d", "--smoke", "--data", crops, "--out", tmp_path / "r")
    assert outcome.code == 2
    assert "holds no ShapeNet part data" in outcome.err
    outcome = ranp("train", RECIPE, *SMALL, "--data", tmp_path / "no", "--out", tmp_path / "s")
    assert outcome.code == 2
    assert "does not exist" in outcome.err


def test_damaged_data_names_the_case(ranp, crops, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(crops, broken)
    for path in (broken / "imagesTr").iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    outcome = ranp("train", RECIPE, *SMALL, "--data", broken, "--out", tmp_path / "run")
    assert outcome.code == 4
    assert "hippocampus_0" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hippocampus-unet",), "unknown recipe 'hippocampus-unet'. Did you mean"),
        ((RECIPE, "--set", "epoch=1"), "unknown key 'epoch'. Did you mean 'epochs'?"),
        ((RECIPE, "--method", "ramp-f"), "Did you mean 'ranp-f'?"),
        ((RECIPE, "--plan", "no.json"), "plan 'no.json' does not exist"),
        ((RECIPE, "--plan", "no.json", "--method", "ranp-f"), "leave out --method"),
        ((RECIPE, "--transfer"), "--transfer needs the --plan"),
        ((RECIPE, "--prune-size", "32"), "say --method too"),
        ((RECIPE, "--resume", "perhaps"), "perhaps"),
        ((RECIPE, "--devices", "3"), "a batch of 2 cannot be divided over 3 processes"),
        ((RECIPE, "--set", "network.name=vgg"), "unknown network 'vgg'"),
        ((RECIPE, "--set", "network.options.depth=3"), "unexpected keyword argument 'depth'"),
        ((RECIPE, "--set", "network.name=os:getcwd"), "--network os:getcwd"),
    ],
)
def test_wrong_arguments(ranp, crops, tmp_path, arguments, message):
    outcome = ranp("train", *arguments, "--smoke", "--data", crops, "--out", tmp_path / "run")
    assert outcome.code == 2, outcome.err
    assert message in outcome.err
    assert len(outcome.err.strip().splitlines()) <= 2  # the run directory may be named before
    assert not (tmp_path / "run" / "last.safetensors").exists()


def test_a_wrong_network_leaves_no_run_behind(ranp, crops, tmp_path):
    out = tmp_path / "run"
    wrong = ("train", RECIPE, "--data", crops, "--out", out, "--set", "network.name=vgg")
    assert ranp(*wrong).code == 2
    assert not (out / "config.json").exists()


def test_a_plan_of_another_network_is_refused(ranp, crops, tmp_path):
    first = tmp_path / "first"
    pruned = ("--method", "random", "--sparsity", "0.5", "--data", crops)
    assert ranp("train", RECIPE, *SMALL, *pruned, "--out", first).code == 0
    other = ("--set", "network.options.base_width=8", "--data", crops)
    plan = ("--plan", first / "plan.json")
    outcome = ranp("train", RECIPE, *SMALL, *other, *plan, "--out", tmp_path / "other")
    assert outcome.code == 4
    assert "the plan is for another network" in outcome.err
    same = ranp("train", RECIPE, *SMALL, *plan, "--data", crops, "--out", tmp_path / "same")
    assert same.code == 0
    assert Plan.load(tmp_path / "same" / "plan.json") == Plan.load(first / "plan.json")
    damaged = bytearray((first / "plan.json").read_bytes())
    damaged[-40] ^= 1
    (tmp_path / "damaged.json").write_bytes(damaged)
    plan = ("--plan", tmp_path / "damaged.json", "--data", crops)
    assert ranp("train", RECIPE, *SMALL, *plan, "--out", tmp_path / "third").code == 4


def test_a_plan_is_transferred_to_other_inputs_and_classes(ranp, tmp_path):
    """The paper's T-RANP: pruned for shapes (1 input, 50 classes), trained on brains (4 and 5)."""
    shapes = build_network(load_config("shapenet-unet3d", smoke=True).network)
    plan = make_plan(shapes, sparsity=0.5, method="layerwise", example_input=(1, 1, 16, 16, 16))
    plan.save(tmp_path / "plan.json")
    brains = tmp_path / "brains-run"
    transferred = ("--plan", tmp_path / "plan.json", "--set", "epochs=1", "--out", brains)
    refused = ranp("train", "brats-unet3d", "--smoke", *transferred)
    assert refused.code == 4
    shutil.rmtree(brains)
    outcome = ranp("train", "brats-unet3d", "--smoke", *transferred, "--transfer", "--json")
    assert outcome.code == 0, outcome.err
    kept = {name: len(layer.kept) for name, layer in plan.layers.items()}
    assert outcome.json["slim"]["neurons"] == sum(kept.values()) - 50 + 5


def test_a_pruned_run_has_a_report_with_accuracy_and_slider(ranp, crops, tmp_path):
    run = tmp_path / "run"
    pruned = ("--method", "ranp-f", "--sparsity", "0.4")
    outcome = ranp("train", RECIPE, *SMALL, *pruned, "--data", crops, "--out", run, "--json")
    page = (run / "report.html").read_text()
    assert f"{outcome.json['metrics']['dice']['mean']:.4f}" in page
    assert 'type="range"' in page
    assert "hippocampus, given training cases" in page


def test_pruning_at_one_size_and_training_at_another(ranp, crops, tmp_path):
    run = tmp_path / "run"
    sizes = ("--prune-size", "24", "--set", "data.size=28", "--method", "ranp-f")
    outcome = ranp("train", RECIPE, *SMALL, *sizes, "--data", crops, "--out", run, "--json")
    assert outcome.code == 0, outcome.err
    plan = Plan.load(run / "plan.json")
    assert plan.inputs["args"][0]["tensor"] == [1, 1, 24, 24, 24]
    ratio = outcome.json["full"]["gflops"] / plan.costs["full"]["gflops"]
    assert ratio == pytest.approx((28 / 24) ** 3, rel=1e-6)


def test_what_cannot_be_pruned_that_far_says_how_far_it_can(ranp, crops, tmp_path):
    far = ("train", RECIPE, *SMALL, "--method", "ranp-f", "--sparsity", "0.9", "--data", crops)
    refused = ranp(*far, "--set", "pruning.floor=0", "--out", tmp_path / "one")
    assert refused.code == 3
    assert "the largest feasible sparsity is 0." in refused.err
    floored = ranp(*far, "--out", tmp_path / "two")  # the recipe keeps one
    assert floored.code == 0, floored.err
    kept = [len(layer.kept) for layer in Plan.load(tmp_path / "two" / "plan.json").layers.values()]
    assert min(kept) == 1


def test_a_network_of_your_own(ranp, crops, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    run = tmp_path / "run"
    own = ("--network", "tests.training.networks:Plain")
    smoke = ("--smoke", "--set", "epochs=1", "--data", crops)
    assert ranp("train", RECIPE, *smoke, *own, "--out", run).code == 0
    refused = ranp("evaluate", run)
    assert refused.code == 2
    assert "--network tests.training.networks:Plain" in refused.err
    assert ranp("evaluate", run, *own).code == 0


def test_printed_settings_are_a_recipe(ranp, tmp_path):
    outcome = ranp("train", RECIPE, "--set", "seed=5", "--print-config")
    path = tmp_path / "mine.yaml"
    path.write_text(outcome.out)
    assert load_config(str(path)) == load_config(RECIPE, overrides=["seed=5"])
    assert yaml.safe_load(outcome.out)["seed"] == 5


def test_evaluate_and_runs(ranp, trained, crops):
    best = json.loads((trained / "record.json").read_text())["best"]["dice"]
    outcome = ranp("evaluate", trained, "--json")
    assert outcome.json["metrics"]["dice"] == pytest.approx(best, abs=1e-12)
    assert outcome.json["cases"] == 2
    last = ranp("evaluate", trained, "--weights", "last", "--split", "train", "--json")
    assert last.json["cases"] == 8
    assert ranp("evaluate", trained, "--split", "test").code == 2
    assert ranp("evaluate", trained.parent).code == 2

    (listed,) = ranp("runs", trained.parent, "--json").json
    assert (listed["name"], listed["state"], listed["done"]) == ("full", "finished", 1)
    assert listed["goal"] == "dice"
    assert "full" in ranp("runs", trained.parent).out
    assert ranp("runs", trained / "no").code == 2
    content = bytearray((trained / "record.json").read_bytes())
    content[len(content) // 2] ^= 1
    (trained / "record.json").write_bytes(content)
    (listed,) = ranp("runs", trained.parent, "--json").json
    assert listed["state"].startswith("damaged")


def test_damaged_weights_are_refused(ranp, trained):
    path = trained / "best.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert ranp("evaluate", trained).code == 4


def train_in_background(crops: Path, run: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ranp", "train", RECIPE, "--smoke", "--resume", "auto"]
    return subprocess.Popen(
        [*command, "--data", str(crops), "--out", str(run), *more],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_sigterm_writes_a_checkpoint_and_exits_with_143(crops, tmp_path):
    settings = (*SMALL[:3], "--set", "epochs=1000", "--set", "checkpoint_minutes=0")
    command = ("train", RECIPE, *settings, "--data", crops, "--out", tmp_path / "run")
    main = "from ranp.cli import main; main()"
    process = start_fresh(main, *command, cwd=ROOT, printed=tmp_path)
    while not (tmp_path / "run" / "last.safetensors").exists():
        assert process.is_alive()
        time.sleep(0.02)
    process.terminate()
    process.join(60)
    errors = (tmp_path / "stderr").read_text()
    assert process.exitcode == 143
    assert "to continue, run the same command with --resume auto" in errors


@pytest.mark.slow
def test_ten_kills_at_random_moments(crops, tmp_path):
    import random

    from tests.training.test_resume import assert_same_weights

    settings = ("--set", "epochs=40", "--set", "checkpoint_minutes=0")
    whole = train_in_background(crops, tmp_path / "whole", *settings)
    whole.communicate()
    random_numbers = random.Random(0)
    run = tmp_path / "broken"
    kills = 0
    while not (run / "record.json").exists():
        process = train_in_background(crops, run, *settings)
        if kills < 10:
            log = run / "log.txt"
            begun = log.read_text().count(" at epoch") if log.exists() else 0
            while not log.exists() or log.read_text().count(" at epoch") == begun:
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            time.sleep(random_numbers.uniform(0, 0.5))
            process.kill()
            kills += process.wait() == -signal.SIGKILL
        process.communicate()
    assert kills == 10
    assert_same_weights(tmp_path / "whole", run)


@pytest.mark.slow
@pytest.mark.realdata
def test_real_hippocampi(ranp, shared_data, tmp_path):
    """Three epochs are enough for a Dice of 0.8; the recipe's eight reach more."""
    arguments = ("--data", shared_data / "hippocampus", "--out", tmp_path / "run", "--json")
    outcome = ranp("train", RECIPE, "--set", "epochs=3", *arguments)
    assert outcome.code == 0, outcome.err
    assert outcome.json["metrics"]["dice"]["last"] > 0.8
