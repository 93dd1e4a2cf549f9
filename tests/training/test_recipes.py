"""Every recipe from the command line at its smallest scale: prune, train, evaluate, predict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ranp.datasets.nifti import read_volume
from ranp.datasets.parts import category_named
from ranp.training.config import load_config, recipe_names
from ranp.training.job import read_job

GOALS = {
    "brats-unet3d": "dice",
    "clips-mobilenetv2": "top1",
    "decathlon-unet3d": "dice",
    "hippocampus-unet3d": "dice",
    "shapenet-unet3d": "miou",
    "ucf101-i3d": "top1",
    "ucf101-mobilenetv2": "top1",
    "volumes-resnet3d": "top1",
}


SLOW = ("ucf101-i3d", "ucf101-mobilenetv2", "clips-mobilenetv2")


def test_all_recipes_are_tried():
    assert sorted(GOALS) == recipe_names()


@pytest.mark.parametrize(
    "recipe",
    [
        # Networks for video: tracing them takes longest.
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in GOALS
    ],
)
def test_smoke(recipe, ranp, tmp_path):
    run = tmp_path / "run"
    outcome = ranp("train", recipe, "--smoke", "--method", "ranp-f", "--out", run, "--json")
    assert outcome.code == 0, outcome.err
    record = outcome.json
    config = load_config(recipe, smoke=True)
    assert (record["epochs"], record["method"], record["run"]) == (
        config.epochs,
        "ranp-f",
        str(run),
    )
    assert 0 <= record["metrics"][GOALS[recipe]]["mean"] <= 1
    assert record["slim"]["gflops"] < record["full"]["gflops"]
    assert record["slim"]["neurons"] < record["full"]["neurons"]
    assert {"config.json", "plan.json", "metrics.jsonl", "log.txt", "record.json"} <= {
        path.name for path in run.iterdir()
    }
    assert len((run / "metrics.jsonl").read_text().splitlines()) == config.epochs
    evaluated = ranp("evaluate", run, "--json").json
    assert evaluated["metrics"][GOALS[recipe]] == pytest.approx(record["best"][GOALS[recipe]])
    PREDICTIONS[config.data.kind](ranp, run, tmp_path)


def predict_volume(ranp, run: Path, folder: Path) -> None:
    source = next((run / "data" / "imagesTr").iterdir())
    outcome = ranp("predict", run, source, folder / "labels.nii.gz")
    assert outcome.code == 0, outcome.err
    truth = read_volume(run / "data" / "labelsTr" / source.name)
    labels = read_volume(folder / "labels.nii.gz")
    assert labels.data.shape == truth.data.shape
    assert np.array_equal(labels.affine, truth.affine)
    assert labels.data.max() < read_job(run).config.network.options["classes"]
    assert ranp("predict", run, source, folder / "labels.png").code == 2


def predict_brats(ranp, run: Path, folder: Path) -> None:
    source = next((run / "data").glob("*/*"))
    outcome = ranp("predict", run, source, folder / "labels.nii.gz")
    assert outcome.code == 0, outcome.err
    (flair,) = source.glob("*_flair.nii.gz")
    labels = read_volume(folder / "labels.nii.gz")
    assert np.array_equal(labels.affine, read_volume(flair).affine)
    assert labels.data.shape == read_volume(flair).data.shape
    assert ranp("predict", run, flair, folder / "more.nii.gz").code == 2


def predict_parts(ranp, run: Path, folder: Path) -> None:
    chair = category_named("Chair")
    source = next((run / "data" / "train_data" / chair.synset).iterdir())
    assert ranp("predict", run, source, folder / "any.txt").code == 0
    assert ranp("predict", run, source, folder / "parts.txt", "--category", "Chair").code == 0
    points, labelled = np.loadtxt(source), np.loadtxt(folder / "parts.txt")
    assert np.array_equal(labelled[:, :3], points)
    assert set(labelled[:, 3]) <= set(chair.labels)
    assert set(np.loadtxt(folder / "any.txt")[:, 3]) <= set(range(50))
    outcome = ranp("predict", run, source, folder / "x.txt", "--category", "Chairs")
    assert (outcome.code, "Did you mean 'Chair'?" in outcome.err) == (2, True)


def predict_clip(ranp, run: Path, folder: Path) -> None:
    source = next((run / "data").glob("*/*.avi"))
    outcome = ranp("predict", run, source, folder / "top.json")
    assert outcome.code == 0, outcome.err
    top = json.loads((folder / "top.json").read_text())
    names = {path.parent.name for path in (run / "data").glob("*/*.avi")}
    assert {row["class"] for row in top} == names
    assert sum(row["probability"] for row in top) == pytest.approx(1, abs=1e-5)
    shutil.copy(run / "config.json", folder / "no-video.avi")
    assert ranp("predict", run, folder / "no-video.avi", folder / "top.json").code == 4


def predict_class(ranp, run: Path, folder: Path) -> None:
    source = next((run / "data").glob("*/*.npy"))
    outcome = ranp("predict", run, source, folder / "top.json")
    assert outcome.code == 0, outcome.err
    top = json.loads((folder / "top.json").read_text())
    assert {row["class"] for row in top} == {path.name for path in (run / "data").iterdir()}
    assert ranp("predict", run, run / "config.json", folder / "top.json").code == 4


PREDICTIONS = {
    "hippocampus": predict_volume,
    "decathlon": predict_volume,
    "brats": predict_brats,
    "shapenet": predict_parts,
    "ucf101": predict_clip,
    "clips": predict_clip,
    "volumes": predict_class,
}
