"""Rows 36 and 37: files of different runs are refused together, and so are damaged metrics."""

from __future__ import annotations

import json
import random
import shutil

import pytest
import torch
from torch import nn

import ranp
from ranp.datasets import synthesise
from ranp.errors import IntegrityError
from ranp.files import json_sha256, write_sealed_json
from ranp.report.runs import load_run as load_report
from ranp.schemas import read_epochs, read_run_file
from ranp.training.config import load_config
from ranp.training.inference import evaluate_run, load_run, predict
from ranp.training.job import Job, read_job
from ranp.training.listing import list_runs
from ranp.training.run import train
from ranp.trials.store import Store
from tests.training.conftest import TINY


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of one network that differ in nothing but their seeds, as a mixture would."""
    root = tmp_path_factory.mktemp("runs")
    synthesise("hippocampus", root / "data", cases=5, size=24, seed=0)
    for seed in (1, 2):
        pruning = {"method": "ranp-f", "sparsity": 0.3, "floor": 2, "batches": 1}
        changes = {f"pruning.{key}": value for key, value in pruning.items()}
        changes = {**TINY, "seed": seed, **changes}
        config = load_config("hippocampus-unet3d", smoke=True, changes=changes)
        train(Job(config, root / str(seed), root / "data"))
    return root


@pytest.fixture
def mixed(runs, tmp_path):
    """Makes a copy of the first run with some files of the second."""

    def make(*names):
        shutil.copytree(runs / "1", tmp_path / "run")
        for name in names:
            assert (runs / "1" / name).read_bytes() != (runs / "2" / name).read_bytes()
            shutil.copy(runs / "2" / name, tmp_path / "run" / name)
        return tmp_path / "run"

    return make


def resumed(run):
    (run / "record.json").unlink()
    train(read_job(run), resume=True)


def predicted(run):
    predict(run, run / "absent.nii.gz", run / "out.nii.gz")


USES = {
    "plan.json": (load_run, load_report, resumed),
    "pruning.json": (load_report,),
    "best.safetensors": (load_run,),
    "last.safetensors": (lambda run: load_run(run, "last"), resumed),
    "record.json": (load_report, lambda run: train(read_job(run), resume=True)),
    "metrics.jsonl": (load_report,),
    "data.json": (predicted, resumed, evaluate_run),
}


@pytest.mark.parametrize("name", USES)
def test_row_36_files_of_two_training_runs(name, mixed):
    run = mixed(name)
    for use in USES[name]:
        with pytest.raises(IntegrityError, match=r"another (run|plan)|different runs"):
            use(run)


def test_row_36_all_files_of_one_run_go_together(mixed):
    run = mixed()
    load_run(run), load_run(run, "last")
    assert len(load_report(run).epochs) == 2
    moved = run.rename(run.with_name("moved"))
    (moved / "record.json").unlink()
    assert train(read_job(moved), resume=True)["epochs"] == 2


def test_row_36_a_run_is_not_evaluated_on_other_cases_than_its_own(mixed):
    """Which cases are held out follows from all there are, so one that is gone moves others."""
    run = mixed()
    noted = read_run_file(run, "data.json", "data")
    assert evaluate_run(run)["cases"] == len(noted["validation"]) == 1
    moved = {"train": noted["validation"] + noted["train"][1:], "validation": noted["train"][:1]}
    as_before = {**noted, **moved, "fingerprint": json_sha256(["hippocampus", moved])}
    write_sealed_json(run / "data.json", as_before)  # as if written before a case went
    for split in ("train", "validation"):
        with pytest.raises(IntegrityError, match=rf"other cases \(\d for {split}, now \d\)"):
            evaluate_run(run, split=split)
    assert evaluate_run(run, data=read_job(run).data)["cases"] == 1  # data that was named


def network(classes=2):
    return nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, classes, 1))


def pruned(directory, seed):
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(2, 1, 4, 4, 4, generator=generator), torch.ones(2, 4, 4, 4).long()
    result = ranp.prune(network(), [batch], nn.CrossEntropyLoss(), sparsity=0.4, seed=seed)
    result.save(directory)
    return result


def test_row_36_files_of_two_prunings(tmp_path):
    one, two = (pruned(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 2)))
    assert {len(r.plan.layers["0"].kept) for r in (one, two)} == {4}  # shapes tell nothing
    model = ranp.Plan.load(tmp_path / "a" / "plan.json").apply(network())
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(IntegrityError, match="belongs to another plan than the model"):
        ranp.load_weights(model, tmp_path / "b" / "weights.safetensors")
    assert all(map(torch.equal, model.parameters(), before))
    ranp.load_weights(model, tmp_path / "a" / "weights.safetensors")
    assert torch.equal(model[0].weight, one.model[0].weight)
    ranp.save_weights(model, tmp_path / "a" / "weights.safetensors")  # trained, say
    load_report(tmp_path / "a")
    for name in ("plan.json", "scores.safetensors"):
        shutil.copytree(tmp_path / "a", tmp_path / name)
        shutil.copy(tmp_path / "b" / name, tmp_path / name / name)
        with pytest.raises(IntegrityError, match=f"pruning.json and {name} are of different runs"):
            load_report(tmp_path / name)


def test_row_36_weights_of_an_earlier_version_are_loaded(tmp_path):
    model = network()
    ranp.save_weights(model, tmp_path / "old.safetensors")  # belongs to nothing
    plan = ranp.plan(model, sparsity=0, method="random", example_input=(1, 1, 4, 4, 4))
    ranp.load_weights(plan.apply(model), tmp_path / "old.safetensors")


def test_row_36_records_of_two_cells(tmp_path):
    store = Store(tmp_path)
    cells = [{"seed": 1}, {"seed": 2}]
    store.complete(cells, lambda cell, place: {"dice": cell["seed"] / 10})
    record = store.place(cells[0]) / "record.json"
    shutil.copy(store.place(cells[1]) / "record.json", record)
    with pytest.raises(IntegrityError, match="the record of another cell; remove it"):
        store.result(cells[0])


def test_row_37_damaged_metrics_are_noticed(mixed):
    run = mixed()
    path = run / "metrics.jsonl"
    good, random_numbers = path.read_bytes(), random.Random(0)
    assert [line["epoch"] for line in read_epochs(run)] == [1, 2]
    damaged = [good.splitlines(keepends=True)[1], good + good, good.replace(b'"seal"', b'"seam"')]
    for _ in range(40):
        flipped = bytearray(good)
        flipped[random_numbers.randrange(len(good) - 1)] ^= 1 << random_numbers.randrange(8)
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(IntegrityError, match=r"metrics.jsonl' (was changed|belongs)"):
            load_report(run)
    assert "damaged" in list_runs(run.parent)[0]["state"]
    path.write_bytes(good.splitlines(keepends=True)[0])
    with pytest.raises(IntegrityError, match=r"record.json has 2 epochs, metrics.jsonl 1"):
        load_report(run)


def test_row_37_metrics_of_an_earlier_version_are_read(tmp_path):
    lines = [{"epoch": 1, "loss": 0.5, "metrics": {"dice": 0.5}}, {"epoch": 2, "loss": 0.4}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert read_epochs(tmp_path) == lines
