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


RUN_ALL = """
import contextlib, io, json, sys
from ranp.cli import main
printed = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["ranp", *arguments]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            main()
    except SystemExit as stopped:
        assert stopped.code in (0, None), arguments
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


def run(directory: Path, *commands: tuple[object, ...]) -> list[str]:
    """Runs commands in a process of its own, which knows the modules; returns what each prints."""
    imports = [word for name in MODULES for word in ("--import", f"tests.extension.{name}")]
    given = json.dumps([[*imports, *map(str, command)] for command in commands])
    # Processes that a command starts find the modules, too.
    path = f"{ROOT / 'src'}:{ROOT}"
    result = run_fresh(RUN_ALL, given, cwd=directory, PYTHONPATH=path)
    assert result.returncode == 0, result.stderr
    printed: list[str] = json.loads(result.stdout)
    return printed


# What swishnet costs, by hand: FLOPs + 10 x activations of its three layers at 8^3.
VOXELS = 8**3
FULL_JOULES = VOXELS * (8 * (27 + 1) + 16 * (27 * 8 + 1) + 2 * (16 + 1) + 10 * (8 + 16 + 2))


def test_prune_and_fit_by_name(tmp_path):
    prune = ("prune", "swishnet", "--method", "squared", "--sparsity", 0.5, "--json")
    fit = ("fit", "swishnet", "--method", "squared", "--budget", "energy=40%", "--device", "cpu")
    pruned, fitted = map(json.loads, run(tmp_path, prune, (*fit, "--json")))
    assert pruned["method"] == "squared" and pruned["settings"]["resource"] is None
    assert pruned["settings"]["scoring"]["data"] == "synthetic boxes"
    kept = {layer["name"]: layer["kept"] for layer in pruned["layers"]}
    assert sum(kept.values()) < 26 and kept["head"] == 2
    assert pruned["slim"]["gflops"] < pruned["full"]["gflops"]
    assert fitted["binding"] == "energy"
    assert fitted["figures"]["full"]["energy"] == FULL_JOULES
    assert 0.25 * FULL_JOULES < fitted["figures"]["slim"]["energy"] <= 0.4 * FULL_JOULES


def test_train_evaluate_and_data_commands_by_name(tmp_path):
    _, evaluated, predicted, *_ = run(
        tmp_path,
        ("train", RECIPE, "--method", "squared", "--sparsity", 0.5, "--out", "run"),
        ("evaluate", "run", "--json"),
        ("predict", "run", "run/data/000.npz", "box.npz"),
        ("data", "synth", "boxes", "d", "--cases", 3, "--size", 8),
        ("data", "verify", "boxes", "d"),
    )
    assert ranp.Plan.load(tmp_path / "run/plan.json").method == "squared"
    assert 0 <= json.loads(evaluated)["metrics"]["dice box"] <= 1
    with np.load(tmp_path / "box.npz") as arrays:
        assert predicted == f"box.npz: voxels: {arrays['y'].sum()}\n"
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [
        "000.npz", "001.npz", "002.npz",
    ]  # fmt: skip


@pytest.mark.slow
def test_compare_by_name(tmp_path):
    arguments = ("--methods", "full,squared,thin", "--budget", "energy=40%", "--seeds", 2)
    arguments += ("--out", "c", "--jobs", 2, "--json")  # the other process knows them too
    (printed,) = run(tmp_path, ("compare", "--recipe", RECIPE, *arguments))
    (at,) = json.loads(printed)["budgets"]
    rows = {row["method"]: row for row in at["rows"]}
    assert at["resource"] == "energy" and rows.keys() == {"full", "squared", "thin"}
    assert all(set(row["outcomes"].values()) == {"trained"} for row in rows.values())
    assert at["amount"] == pytest.approx(0.4 * FULL_JOULES)
