from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ranp as library
from tests.cli import factories

SMALL = "tests.cli.factories:small"
INPUT = ("--input", "1,1,8,8,8")
DATA = ("--data", "tests.cli.factories:batches")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def test_help_does_not_import_torch():
    program = (
        "import sys\nsys.argv = ['ranp', '--help']\nfrom ranp.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'monai', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in ("profile", "prune", "score", "plan", "search", "inspect", "methods", "data"):
        assert command in done.stdout


def test_version(ranp):
    assert ranp("--version").out == f"ranp {library.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["prune", "unet3d-shapenet", "--method", "layerwise", "--sparsity", "1.2"], 2, "1.2"),
        (["profile", "unet3d-shapnet"], 2, "Did you mean 'unet3d-shapenet'?"),
        (["profile", "no.such.module:net", *INPUT], 2, "cannot import 'no.such.module'"),
        (["profile", "tests.cli.factories:smal", *INPUT], 2, "Did you mean 'small'?"),
        (["profile", "tests.cli.factories:raises", *INPUT], 2, "RuntimeError: no such luck"),
        (["profile", "tests.cli.factories:number", *INPUT], 2, "not an nn.Module"),
        (["profile", "tests.cli.factories:NOT_A_FUNCTION", *INPUT], 2, "cannot be called"),
        (["profile", SMALL], 2, "--input"),
        (["profile", "unet3d-shapenet", "--input", "1,1,64,64"], 2, "4 dimensions"),
        (["profile", "unet3d-shapenet", "--input", "1,3,64,64,64"], 2, "3 channels"),
        (["profile", "unet3d-shapenet", "--input", "1,1,a"], 2, "not a shape"),
        (["profile", SMALL, "--input", "1,2,8,8,8"], 5, "check the example input"),
        (["prune", SMALL, *INPUT, "--method", "rnap-f", "--sparsity", ".5"], 2, "'ranp-f'"),
        (["prune", SMALL, *INPUT, "--sparsity", ".5"], 2, "--data"),
        (["prune", SMALL, *INPUT, *DATA, "--sparsity", ".9"], 3, "largest feasible sparsity is"),
        (["inspect", SMALL, *INPUT, "--protect", "9"], 2, "is called '9'"),
        (["profile", SMALL, *INPUT, "--convention", "mac"], 2, "'macs'"),
        (["nonsense"], 2, "nonsense"),
        (["score", SMALL, *INPUT, *DATA, "--out", "/dev/null/s"], 2, "cannot use '/dev/null'"),
    ],
)  # fmt: skip
def test_errors_are_one_line(ranp, arguments, code, words):
    outcome = ranp(*arguments)
    assert outcome.code == code
    assert outcome.out == ""
    assert outcome.err.startswith("ranp: ") or "\nranp: " in outcome.err
    assert len(outcome.err.splitlines()) == (2 if outcome.err.startswith("Scoring") else 1)
    assert words in outcome.err


@pytest.mark.parametrize(
    ("data", "loss", "code", "words"),
    [
        ("no_batches", None, 2, "no batches"),
        ("poisoned_batches", None, 4, "batch 3"),
        ("batches", "unreduced", 2, "(1, 8, 8, 8)"),
    ],
)
def test_bad_batches(ranp, tmp_path, data, loss, code, words):
    options = ["--loss", f"tests.cli.factories:{loss}"] if loss else []
    out = tmp_path / "scores.safetensors"
    outcome = ranp(
        "score", SMALL, *INPUT, "--data", f"tests.cli.factories:{data}", *options, "--out", out
    )
    assert outcome.code == code
    assert words in outcome.err.splitlines()[-1]
    assert not out.exists()


def test_score_plan_and_apply(ranp, tmp_path):
    scores, plan = tmp_path / "scores.safetensors", tmp_path / "plan.json"
    scored = ranp("score", SMALL, *INPUT, *DATA, "--out", scores, "--json")
    assert scored.json == {"scores": str(scores), "batches": 4, "neurons": 16}
    assert "Next: ranp plan" in scored.err
    planned = ranp("plan", SMALL, scores, "--sparsity", ".5", *INPUT, "--out", plan, "--json")
    assert planned.code == 0
    # int(16 x 0.5) = 8 are retained over all layers; the last layer's 2 are kept in any case.
    kept = {layer["name"]: layer["kept"] for layer in planned.json["layers"]}
    assert kept["4"] == 2
    assert 8 <= sum(kept.values()) <= 10
    slim = library.Plan.load(plan).apply(factories.small())
    assert [slim[i].out_channels for i in (0, 2, 4)] == [kept["0"], kept["2"], 2]
    # Everything at once gives the same plan as one step after the other.
    pruned = ranp("prune", SMALL, *INPUT, *DATA, "--sparsity", ".5", "--json")
    assert pruned.json["layers"] == planned.json["layers"]
    assert pruned.json["slim"] == planned.json["slim"]


@pytest.mark.parametrize(
    "command", [("prune", "--sparsity", ".5"), ("fit", "--params", "50%"), ("search",)]
)
def test_samples_of_a_batch_one_by_one(ranp, command):
    name, *options = command
    shape = ("--input", "1,8,8,8") if name == "fit" else INPUT  # a sample's, or a batch's
    single = ranp(name, SMALL, *shape, *DATA, *options, "--json").json
    together = ("--data", "tests.cli.factories:one_batch")
    found = ranp(name, SMALL, *shape, *together, "--per", "sample", *options, "--json").json
    for key in ("layers", "sparsity", "max_sparsity"):
        assert found.get(key) == single.get(key)
    whole = ranp("score", SMALL, *INPUT, *together, "--per", "voxel")
    assert whole.code == 2


def test_scoring_stops_by_itself(ranp):
    command = ("prune", SMALL, *INPUT, "--sparsity", ".5", "--auto", "--json")
    few = ranp(*command, *DATA)
    assert "4 batches are too few to say" in few.err
    many = ranp(*command, "--data", "tests.cli.factories:many_batches")
    assert "ettled: after " in many.err
    found = many.json["settings"]["scoring"]
    assert 8 <= found["batches"] <= 16
    assert f"agrees by {100 * found['agreement']:.1f} %" in many.err


def test_prune_writes_what_apply_gives(ranp, tmp_path):
    outcome = ranp("prune", SMALL, *INPUT, *DATA, "--sparsity", ".5", "--out", tmp_path)
    assert outcome.code == 0
    assert {p.name for p in tmp_path.iterdir()} == {
        "plan.json", "pruning.json", "report.html", "scores.safetensors",
        "weights.safetensors",
    }  # fmt: skip
    plan = library.Plan.load(tmp_path / "plan.json")
    assert plan.network == SMALL
    slim, other = plan.apply(factories.small()), plan.apply(factories.small(), seed=1)
    assert not torch.equal(slim[0].weight, other[0].weight)
    library.load_weights(other, tmp_path / "weights.safetensors")
    assert torch.equal(slim[0].weight, other[0].weight)


def test_search(ranp, tmp_path):
    scores = tmp_path / "scores.safetensors"
    ranp("score", SMALL, *INPUT, *DATA, "--out", scores)
    outcome = ranp("search", SMALL, *INPUT, "--scores", scores, "--json")
    largest = outcome.json["max_sparsity"]
    arguments = ["plan", SMALL, scores, *INPUT, "--out", tmp_path / "p.json", "--sparsity"]
    assert ranp(*arguments, largest).code == 0
    assert ranp(*arguments, largest + 1.01e-4).code == 3


def test_infeasible_as_json(ranp):
    outcome = ranp("prune", SMALL, *INPUT, *DATA, "--sparsity", ".95", "--json")
    assert outcome.code == 3
    assert outcome.json["feasible"] is False
    assert 0 < outcome.json["max_sparsity"] < 0.95


def test_inspect(ranp):
    rows = ranp("inspect", SMALL, *INPUT, "--protect", "0", "--json").json["layers"]
    assert [row["removable"] for row in rows] == [0, 8, 0]
    assert rows[0]["why_kept"] == ["it is protected by the user"]
    assert rows[2]["why_kept"] == ["it is the network's output"]


def test_methods(ranp):
    rows = ranp("methods", "--json").json
    assert [row["name"] for row in rows] == list(library.METHODS)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_was_scored(tmp_path, number, code):
    """The process is signalled in its second batch; going on gives the scores of one go."""
    out = tmp_path / "scores.safetensors"
    (tmp_path / "endless.py").write_text(
        "import os, signal\n"
        "from tests.cli.factories import batches\n"
        "def loader():\n"
        "    for i, batch in enumerate(batches()):\n"
        f"        if i == 1 and os.environ.get('INTERRUPT'): os.kill(os.getpid(), {int(number)})\n"
        "        yield batch\n"
    )
    command = [sys.executable, "-m", "ranp", "score", SMALL, *INPUT, "--out", str(out)]
    command += ["--data", "endless:loader"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}

    first = subprocess.run(
        command, env={**environment, "INTERRUPT": "1"}, capture_output=True, text=True
    )
    assert first.returncode == code, first.stderr
    assert "--resume" in first.stderr
    assert library.Scores.load(out).batches == 2
    second = subprocess.run(
        [*command, "--resume", "--json"], env=environment, capture_output=True, text=True
    )
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["batches"] == 4
    resumed = library.Scores.load(out)
    whole = library.score(
        factories.small(),
        factories.batches(),
        torch.nn.functional.cross_entropy,
        example_input=(1, 1, 8, 8, 8),
    )
    for name, values in whole.average("mpmg").items():
        assert resumed.average("mpmg")[name] == pytest.approx(values, rel=1e-12)
