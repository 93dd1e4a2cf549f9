"""Generic data sets on real data, from the command line: verify, train, evaluate, predict."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ranp.datasets.nifti import read_volume

pytestmark = pytest.mark.realdata
SMALLEST = ("--smoke", "--set", "epochs=1", "--set", "network.options.base_width=4")


@pytest.fixture(params=["decathlon", "nnunet"])
def hippocampus(request, shared_data, tmp_path):
    """Ten cases of the real hippocampus in one of the two layouts."""
    root = tmp_path / "Dataset004_Hippocampus"
    suffix = "_0000" if request.param == "nnunet" else ""
    for name in ("imagesTr", "labelsTr"):
        (root / name).mkdir(parents=True)
    names = []
    for image in sorted((shared_data / "hippocampus" / "images").iterdir())[:10]:
        labels = shared_data / "hippocampus" / "labels" / image.name
        if labels.exists():
            stem = image.name.removesuffix(".nii.gz")
            (root / "imagesTr" / f"{stem}{suffix}.nii.gz").symlink_to(image)
            (root / "labelsTr" / image.name).symlink_to(labels)
            names.append(image.name)
    content = {
        "decathlon": {
            "modality": {"0": "MRI"},
            "labels": {"0": "background", "1": "Anterior", "2": "Posterior"},
            "training": [{"image": f"./imagesTr/{n}", "label": f"./labelsTr/{n}"} for n in names],
        },
        "nnunet": {
            "channel_names": {"0": "MRI"},
            "labels": {"background": 0, "Anterior": 1, "Posterior": 2},
            "file_ending": ".nii.gz",
        },
    }[request.param]
    (root / "dataset.json").write_text(json.dumps(content))
    return root


def train_and_predict(ranp, data, out, source, labels):
    verified = ranp("data", "verify", "decathlon", data, "--json", "--workers", 2)
    assert verified.code == 0, verified.err
    trained = ranp("train", "decathlon-unet3d", "--data", data, *SMALLEST, "--out", out)
    assert trained.code == 0, trained.err
    assert "Adapted to" in trained.err
    evaluated = ranp("evaluate", out, "--json")
    assert set(evaluated.json["metrics"]) == {"dice", *(f"dice {label}" for label in labels)}
    predicted = out / "predicted.nii.gz"
    assert ranp("predict", out, source, predicted).code == 0
    image, made = read_volume(source), read_volume(predicted)
    assert made.data.shape == image.data.shape
    np.testing.assert_allclose(made.affine, image.affine, atol=1e-6)
    assert made.data.max() <= len(labels)


def test_hippocampus_in_both_layouts(ranp, hippocampus, tmp_path):
    source = sorted((hippocampus / "imagesTr").iterdir())[0]
    train_and_predict(ranp, hippocampus, tmp_path / "run", source, ["Anterior", "Posterior"])


@pytest.mark.slow
def test_left_atrium(ranp, shared_data, tmp_path):
    data = shared_data / "left_atrium" / "Task02_LeftAtrium"
    source = data / "imagesTr" / "la_090.nii.gz"
    train_and_predict(ranp, data, tmp_path / "run", source, ["left atrium"])


@pytest.mark.slow
def test_modelnet_is_learnt(ranp, shared_data, tmp_path):
    arguments = ("--data", shared_data / "modelnet10", "--set", "epochs=4", "--out", tmp_path / "r")
    record = ranp("train", "volumes-resnet3d", *arguments, "--json").json
    assert record["metrics"]["top1"]["last"] >= 0.85
