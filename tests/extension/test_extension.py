"""One of each kind from one file outside the package, run by name through the commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ranp
from tests.fresh import run_fresh

ROOT = Path(__file__).parents[2]
MODULES = ("own_resource", "own_method", "own_operation", "own_network", "own_dataset")
RECIPE = ROOT / "tests/extension/boxes.yaml"


def run(directory: Path, *arguments: object) -> str:
    imports = [word for name in MODULES for word in ("--import", f"tests.extension.{name}")]
    program = "from ranp.cli import main; main()"
    # Processes that a command starts find the modules, too.
    path = f"{ROOT / 'src'}:{ROOT}"
    result = run_fresh(program, *imports, *arguments, cwd=directory, PYTHONPATH=path)
    assert result.returncode == 0, result.stderr
    return result.stdout


# What swishnet costs, by hand: FLOPs + 10 x activations of its three layers at 8^3.
VOXELS = 8**3
FULL_JOULES = VOXELS * (8 * (27 + 1) + 16 * (27 * 8 + 1) + 2 * (16 + 1) + 10 * (8 + 16 + 2))


def test_prune_by_name(tmp_path):
    printed = run(tmp_path, "prune", "swishnet", "--method", "squared", "--sparsity", 0.5, "--json")
    found = json.loads(printed)
    assert found["method"] == "squared" and found["settings"]["resource"] is None
    assert found["settings"]["scoring"]["data"] == "synthetic boxes"
    kept = {layer["name"]: layer["kept"] for layer in found["layers"]}
    assert sum(kept.values()) < 26 and kept["head"] == 2
    assert found["slim"]["gflops"] < found["full"]["gflops"]


def test_fit_by_name(tmp_path):
    arguments = ("--method", "squared", "--budget", "energy=40%", "--device", "cpu", "--json")
    found = json.loads(run(tmp_path, "fit", "swishnet", *arguments))
    assert found["binding"] == "energy"
    assert found["figures"]["full"]["energy"] == FULL_JOULES
    assert 0.25 * FULL_JOULES < found["figures"]["slim"]["energy"] <= 0.4 * FULL_JOULES


def test_train_and_evaluate_by_name(tmp_path):
    run(tmp_path, "train", RECIPE, "--method", "squared", "--sparsity", 0.5, "--out", "run")
    plan = ranp.Plan.load(tmp_path / "run/plan.json")
    assert plan.method == "squared"
    scores = json.loads(run(tmp_path, "evaluate", "run", "--json"))
    assert 0 <= scores["metrics"]["dice box"] <= 1
    case = next((tmp_path / "run/data").glob("*.npz"))
    printed = run(tmp_path, "predict", "run", case, "box.npz")
    with np.load(tmp_path / "box.npz") as arrays:
        assert printed == f"box.npz: voxels: {arrays['y'].sum()}\n"


@pytest.mark.slow
def test_compare_by_name(tmp_path):
    arguments = ("--methods", "full,squared,thin", "--budget", "energy=40%", "--seeds", 2)
    arguments += ("--out", "c", "--jobs", 2, "--json")  # the other process knows them too
    found = json.loads(run(tmp_path, "compare", "--recipe", RECIPE, *arguments))
    (at,) = found["budgets"]
    rows = {row["method"]: row for row in at["rows"]}
    assert at["resource"] == "energy" and rows.keys() == {"full", "squared", "thin"}
    assert all(set(row["outcomes"].values()) == {"trained"} for row in rows.values())
    assert at["amount"] == pytest.approx(0.4 * FULL_JOULES)


def test_data_commands_by_name(tmp_path):
    run(tmp_path, "data", "synth", "boxes", "d", "--cases", 3, "--size", 8)
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [
        "000.npz", "001.npz", "002.npz",
    ]  # fmt: skip
    run(tmp_path, "data", "verify", "boxes", "d")
