"""Every example runs, and does what it says."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ranp
from ranp.datasets import synthesise

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs an example as a reader does; gives what it printed and the names it defines."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)

    def run_example(name: str):
        names = runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out, names

    return run_example


def numbers(pattern: str, text: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


def test_own_network(run):
    printed, _ = run("own_network.py")
    losses = numbers(r"loss ([\d.]+)", printed)
    assert losses == sorted(losses, reverse=True) and len(losses) == 3
    assert "head        3   3" in printed


def test_monai_segresnet(run):
    printed, _ = run("monai_segresnet.py")
    full, slim = numbers(r"takes ([\d.]+) GiB", printed)
    assert slim < 0.6 * full
    (share,) = numbers(r"^ranp-f +[\d.]+ +([\d.]+) %", printed.split("GFLOPs")[1].split("\n", 2)[2])
    assert share < 40


def test_pretrained_weights(run):
    printed, _ = run("pretrained_weights.py")
    trained, pruned, after = numbers(r"loss ([\d.]+)", printed)
    # Fresh weights would be at log 2 = 0.69: the kept ones still know what was learnt.
    assert trained < after < pruned < 0.5


# Lightning 2.6 asks PyTorch 2.13 in a deprecated way, and wants more loader workers.
@pytest.mark.filterwarnings("ignore")
def test_lightning_callback(run, caplog):
    import lightning as L
    from torch.nn.functional import cross_entropy

    printed, names = run("lightning_callback.py")
    assert re.search(r"17 +50.0 %", printed) and "loss of the last step" in printed
    plan = ranp.Plan.load("plan.json")

    # The optimizer holds the slim network's parameters, and a plan that is there is used.
    module = names["Segmenter"]()
    before = module.network[0].out_channels
    callback = names["PruneBeforeFit"](None, cross_entropy, Path("plan.json"))
    x = torch.randn(2, 1, 12, 12, 12)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, (x > 0)[:, 0].long()), batch_size=2
    )
    trainer = L.Trainer(
        max_steps=1, accelerator="cpu", logger=False, callbacks=callback,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    assert module.network[0].out_channels == len(plan.layers["0"].kept) < before
    held = {id(p) for group in trainer.optimizers[0].param_groups for p in group["params"]}
    assert held == {id(p) for p in module.parameters()}


@pytest.mark.filterwarnings("ignore")
def test_lightning_race(run):
    printed, names = run("lightning_race.py")
    rungs = re.findall(r"Rung at check-in (\d+): ([^;\n]+)", printed)
    assert len(rungs[0][1].split(" > ")) == 6 and rungs[-1][0] == "4"
    # Where the race has been is where a whole training passes by, with the same numbers.
    (reached,) = re.findall(r"ranp-f, seed 0, at check-in 4: accuracy ([\d.]+)", printed)
    loss = torch.nn.functional.cross_entropy
    slim = ranp.prune(names["build"](), names["loaders"]()[0], loss, flops="30%").model
    torch.manual_seed(0)
    lines = [{name: float(v) for name, v in x.items()} for x in names["train"](slim, 0)]
    assert len(lines) == names["EPOCHS"]
    assert f"{lines[3]['accuracy']:.3g}" == reached


def test_save_pretrained(run):
    printed, names = run("save_pretrained.py")
    assert "same output: True" in printed
    folder = Path("slim-segmenter")
    assert json.loads((folder / "config.json").read_text()) == {"classes": 3, "width": 16}

    # Networks that were never pruned go through the same files, without a plan.
    full = names["Segmenter"](2, width=4).eval()
    full.save_pretrained("full-segmenter")
    again = names["Segmenter"].from_pretrained("full-segmenter")
    x = torch.rand(1, 1, 6, 6, 6)
    assert torch.equal(again(x), full(x))

    # A configuration of another network does not fit the plan.
    (folder / "config.json").write_text(json.dumps({"classes": 3, "width": 8}))
    with pytest.raises(ranp.IntegrityError, match=r"body\.0\.weight"):
        names["Segmenter"].from_pretrained(folder)


def test_plan_by_memory(run):
    printed, names = run("plan_by_memory.py")
    budgets = numbers(r"(\d+) GiB: patch", printed)
    predictions = numbers(r"predicted ([\d.]+) GiB", printed)
    assert len(budgets) == len(predictions) == 2
    assert all(p <= b for p, b in zip(predictions, budgets, strict=True))
    large, small = numbers(r"sparsity ([\d.]+),", printed)
    assert large < small

    nothing = names["choose"](
        torch.nn.Sequential(torch.nn.Conv3d(1, 4, 3), torch.nn.Conv3d(4, 2, 1)),
        None, 1e-6, patches=(8,), sparsities=(),
    )  # fmt: skip
    assert nothing is None


def test_every_example_is_tested_and_shown():
    tests = Path(__file__).read_text()
    page = (EXAMPLES.parent / "docs/examples.md").read_text()
    for example in EXAMPLES.glob("*.py"):
        assert f'run("{example.name}")' in tests
        assert f"../examples/{example.name}" in page


@pytest.mark.filterwarnings("ignore")  # MONAI's own
def test_compare_monai(run, tmp_path, monkeypatch):
    synthesise("hippocampus", tmp_path / "scans", cases=5, size=24, seed=0)
    monkeypatch.setattr(sys, "argv", ["compare_monai.py", str(tmp_path / "scans"), "1", "1"])
    printed, _ = run("compare_monai.py")
    assert "run 4 of 4: weighted, seed 0" in printed
    budgets = [
        float(x) for x in re.findall(r"^(?:thin|ranp-f|weighted) .*([+-][\d.]+) %", printed, re.M)
    ]
    assert len(budgets) == 3 and max(map(abs, budgets)) < 2
    assert re.search("points (above|below) thinning by hand", " ".join(printed.split()))


@pytest.mark.slow
@pytest.mark.realdata
def test_compare_monai_is_killed_and_goes_on(tmp_path, shared_data):
    """On real scans: killed in its third run, it computes what is missing, with the same answer."""
    program = [sys.executable, "-u", EXAMPLES / "compare_monai.py", shared_data / "hippocampus"]
    program = [*map(str, program), "2", "1", "10"]
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
    with subprocess.Popen(
        program, cwd=tmp_path / "killed", stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if line.startswith("run 3"):
                process.kill()
    outputs = {
        name: subprocess.run(
            program, cwd=tmp_path / name, capture_output=True, text=True, check=True
        ).stdout
        for name in ("killed", "whole")
    }
    assert outputs["killed"].count("run ") == 2 and outputs["whole"].count("run ") == 4
    accuracy = r"^(full|thin|ranp-f|weighted) +([\d.]+)"
    tables = {name: re.findall(accuracy, text, re.M) for name, text in outputs.items()}
    assert tables["killed"] == tables["whole"] and len(tables["whole"]) == 4
