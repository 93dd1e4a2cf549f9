from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from ranp.datasets import synthesise, verify
from ranp.datasets.decathlon import check
from ranp.datasets.hippocampus import inventory, open_reader
from ranp.datasets.nifti import read_volume, write_volume
from ranp.errors import UsageError


@pytest.fixture
def directory(tmp_path):
    synthesise("hippocampus", tmp_path / "set", cases=6, size=24, seed=0)
    return tmp_path / "set"


def test_padded_to_a_cube_without_losing_a_voxel(directory):
    reader = open_reader(directory, "train", size=32)
    for index, case in enumerate(reader.cases):
        sample = reader.read(index, np.random.default_rng(0))
        raw = read_volume(case.labels).data
        assert sample["x"].shape == (1, 32, 32, 32)
        assert sample["y"].shape == (32, 32, 32)
        np.testing.assert_array_equal(
            np.bincount(sample["y"][sample["y"] > 0]), np.bincount(raw[raw > 0])
        )
        inside = sample["x"][0] != 0
        assert inside.sum() >= 0.99 * raw.size
        assert not sample["x"][0, 0].any()  # padding is the mean


def test_cropped_in_training_at_random_and_in_validation_in_the_centre(directory):
    train, validation = (open_reader(directory, s, size=12) for s in ("train", "validation"))
    crops = [train.read(0, np.random.default_rng(seed)) for seed in range(5)]
    assert all(crop["y"].any() for crop in crops)
    assert len({crop["x"].tobytes() for crop in crops}) > 1
    centre = [validation.read(0, np.random.default_rng(seed))["x"] for seed in range(2)]
    np.testing.assert_array_equal(*centre)


def test_plain_folders_are_read_too_and_orphans_are_named(directory):
    (directory / "imagesTr").rename(directory / "images")
    (directory / "labelsTr").rename(directory / "labels")
    (directory / "images/hippocampus_00002.nii.gz").unlink()
    (directory / "labels/hippocampus_00004.nii.gz").unlink()
    report = verify("hippocampus", directory, workers=1)
    assert report.ok
    assert report.counts["cases"] == {"paired": 4, "unpaired": 2}
    assert report.notes == (
        "hippocampus_00002: a label without an image; skipped",
        "hippocampus_00004: no label; skipped",
    )
    ids = [*open_reader(directory, "train").ids, *open_reader(directory, "validation").ids]
    assert sorted(ids) == [f"hippocampus_0000{i}" for i in (0, 1, 3, 5)]


def test_problems_are_all_listed(directory):
    labels = sorted((directory / "labelsTr").iterdir())
    images = sorted((directory / "imagesTr").iterdir())
    for path, edit in (
        (labels[0], lambda data: np.where(data == 2, 3, data)),
        (labels[1], lambda data: data[1:]),
        (images[2], lambda data: np.where(data > 0, np.inf, 0).astype(np.float32)),
    ):
        volume = read_volume(path)
        write_volume(
            path,
            edit(volume.data).astype(volume.data.dtype) if path in labels else edit(volume.data),
            volume.affine,
        )
    images[3].write_bytes(b"")
    (directory / "imagesTr" / "notes.txt").write_text("?")
    (directory / "imagesTr" / "._hippocampus_00000.nii.gz").write_text("macOS leaves these")
    listing = json.loads((directory / "dataset.json").read_text())
    listing["training"].append(
        {"image": "./imagesTr/gone.nii.gz", "label": "./labelsTr/gone.nii.gz"}
    )
    (directory / "dataset.json").write_text(json.dumps(listing))
    report = verify("hippocampus", directory, workers=1)
    reasons = " | ".join(f"{p.path}: {p.reason}" for p in report.problems)
    assert len(report.problems) == 6
    for words in ("label 3", "geometry", "NaN or infinite", "no whole header", "notes.txt", "gone"):
        assert words in reasons


def test_an_unreadable_orphan_is_a_problem(directory):
    (directory / "labelsTr/hippocampus_00001.nii.gz").unlink()
    (directory / "imagesTr/hippocampus_00001.nii.gz").write_bytes(b"x")
    case = next(c for c in inventory(directory).cases if c.id == "hippocampus_00001")
    assert "whole header" in check(case).problems[0].reason


def test_wrong_use(tmp_path):
    shutil.rmtree(tmp_path / "images", ignore_errors=True)
    with pytest.raises(UsageError, match="expected imagesTr and labelsTr, or images and labels"):
        inventory(tmp_path)
