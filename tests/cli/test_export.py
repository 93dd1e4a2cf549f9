"""`ranp export`: sources, what is printed, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import ranp as library
from ranp.cli import app
from ranp.files import read_sealed_json, write_sealed_json
from ranp.slimming import load_weights
from ranp.training.inference import load_run
from tests.cli.factories import small

SMALL = "tests.cli.factories:small"


@pytest.fixture(scope="module")
def pruned_once(tmp_path_factory) -> Path:
    """What `ranp prune --out` leaves of a small network."""
    out = tmp_path_factory.mktemp("pruned") / "slim"
    arguments = ("--sparsity", "0.5", "--method", "layerwise", "--input", "1,1,8,8,8")
    command = ["prune", SMALL, *arguments, "--out", str(out), "-q"]
    assert CliRunner().invoke(app, command).exit_code == 0
    return out


@pytest.fixture
def pruned(pruned_once, tmp_path) -> Path:
    """A copy that may be changed."""
    return shutil.copytree(pruned_once, tmp_path / "slim")


@pytest.fixture
def slim(pruned):
    model = library.Plan.load(pruned / "plan.json").apply(small())
    load_weights(model, pruned / "weights.safetensors")
    return model.eval()


def test_a_pruned_network_is_exported(ranp, pruned, slim, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    to = tmp_path / "new" / "slim.onnx"
    done = ranp("export", pruned, "--to", to, "--network", SMALL, "--time", "--repetitions", "2")
    assert done.code == 0, done.err
    parameters = sum(p.numel() for p in slim.parameters())
    shown = " ".join(done.out.split())
    assert f"parameters {parameters}" in shown and "input input 1 x 1 x 8 x 8 x 8" in shown
    assert "largest difference" in shown and "PyTorch" in shown and "onnxruntime" in shown
    assert "fresh ones, unless you trained them" in done.err
    # The next step that is named works as it stands.
    x = torch.randn(1, 1, 8, 8, 8)
    code = "\n".join(line[4:] for line in done.err.partition("ranp:\n")[2].splitlines())
    names = {}
    exec(code, names)
    assert names["outputs"][0].shape == (1, 2, 8, 8, 8)
    session = runtime.InferenceSession(to)
    (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        assert (torch.from_numpy(output) - slim(x)).abs().max() <= 1e-5


def test_the_record_for_programs(ranp, pruned, slim, tmp_path):
    to = tmp_path / "slim.pt2"
    arguments = ("--network", SMALL, "--dynamic", "--time", "--repetitions", "2")
    done = ranp("export", pruned, "--to", to, *arguments, "--json", "--quiet")
    assert done.code == 0 and done.err == ""
    record = done.json
    assert record["path"] == str(to) and record["format"] == "pt2"
    assert record["file_bytes"] == to.stat().st_size
    assert record["parameters"] == sum(p.numel() for p in slim.parameters())
    assert record["inputs"] == {"input": ["batch", 1, "depth", "height", "width"]}
    assert record["difference"] <= 1e-6
    assert record["times"]["shape"] == [1, 1, 8, 8, 8]
    for run in record["times"]["runs"].values():
        assert len(run["times"]) == 2 and min(run["times"]) <= run["seconds"] <= max(run["times"])
    x = torch.randn(2, 1, 6, 6, 6)
    with torch.no_grad():
        assert torch.allclose(torch.export.load(to).module()(x), slim(x), atol=1e-6)
    extra = {"ranp.json": ""}
    torch.export.load(to, extra_files=extra)
    origin = json.loads(extra["ranp.json"])
    assert (origin["network"], origin["method"], origin["sparsity"]) == (SMALL, "layerwise", 0.5)
    assert origin["plan"] == json.loads((pruned / "plan.json").read_text())["sha256"]


def test_a_run_is_exported_with_its_best_weights(ranp, tmp_path):
    run, to = tmp_path / "run", tmp_path / "trained.pt2"
    settings = ("--set", "network.options.base_width=4", "--set", "network.options.levels=2")
    train = ("train", "hippocampus-unet3d", "--smoke", *settings, "--set", "epochs=1")
    assert ranp(*train, "--method", "layerwise", "--sparsity", "0.5", "--out", run, "-q").code == 0
    done = ranp("export", run, "--to", to)
    assert done.code == 0, done.err
    assert "fresh" not in done.err and "torch.export.load" in done.err
    job, model = load_run(run)
    edge = job.config.data.validation_size or job.config.data.size
    x = torch.rand(1, 1, edge, edge, edge)
    with torch.no_grad():
        assert torch.allclose(torch.export.load(to).module()(x), model(x), atol=1e-5)
    shutil.rmtree(run / "data")
    without = ranp("export", run, "--to", to)
    assert without.code == 2 and "without the run's data, give the input shape" in without.err
    assert ranp("export", run, "--to", to, "--input", "1,1,16,16,16", "--weights", "last").code == 0
    with torch.no_grad():
        x, (_, last) = torch.rand(1, 1, 16, 16, 16), load_run(run, "last")
        assert torch.allclose(torch.export.load(to).module()(x), last(x), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ("nowhere", "--to", "x.pt2"),
            2,
            "'nowhere' is not a directory: name what `ranp prune",
        ),
        ((".", "--to", "x.pt2"), 2, "'.' holds no plan.json and no run"),
        (("slim", "--to", "x.tflite"), 2, "use a name that ends in .onnx or .pt2"),
        (("slim", "--to", "x.pt2"), 2, f"name it again: --network {SMALL}"),
        (("slim",), 2, "Missing option '--to'"),
        (
            ("slim", "--to", "x.pt2", "--network", SMALL, "--input", "1,2,8,8,8"),
            5,
            "channels",
        ),
        (("slim", "--to", "slim", "--network", SMALL), 2, "use a name that ends in"),
        (("slim", "--to", "plan.json/x.pt2", "--network", SMALL), 2, "output directory"),
    ],
)
def test_errors_say_what_to_do(ranp, pruned, monkeypatch, arguments, code, message):
    monkeypatch.chdir(pruned.parent)
    Path("plan.json").write_text("")
    if arguments[0] == ".":
        Path("plan.json").unlink()
    done = ranp("export", *arguments)
    assert (done.code, done.out) == (code, ""), done.err
    assert message in done.err and done.err.strip().count("\n") <= 1


@pytest.mark.parametrize("name", ["mobilenetv2-ucf101", "unet3d-brats"])
def test_row_35_the_name_of_another_network_is_refused_by_its_shapes(ranp, pruned, tmp_path, name):
    plan = read_sealed_json(pruned / "plan.json", "plan")
    write_sealed_json(pruned / "plan.json", {**plan, "network": name})
    for command in (("export", pruned, "--to", tmp_path / "x.pt2"), ("bench", pruned)):
        done = ranp(*command)
        assert (done.code, done.out) == (4, ""), done.err
        assert "the plan is for another network: '" in done.err
        assert done.err.strip().count("\n") == 0
    assert not (tmp_path / "x.pt2").exists()
    renamed = library.Plan.load(pruned / "plan.json")  # a name decides nothing in Python
    assert renamed.network == name and renamed.apply(small()) is not None
    with pytest.raises(library.IntegrityError, match=r"is for another network: '0.weight' is"):
        renamed.apply(torch.nn.Sequential(torch.nn.Conv3d(1, 3, 3)))


def test_damaged_weights_are_refused(ranp, pruned, tmp_path):
    path = pruned / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    done = ranp("export", pruned, "--to", tmp_path / "x.pt2", "--network", SMALL)
    assert done.code == 4 and "changed after they were written" in done.err
    assert not (tmp_path / "x.pt2").exists()
