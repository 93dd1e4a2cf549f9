"""The Decathlon's layout and nnU-Net's: reading, describing, verifying, predicting."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from ranp.datasets import find_dataset, open_cases, synthesise, verify
from ranp.datasets.decathlon import describe, normalised, open_reader, read_description
from ranp.datasets.nifti import read_volume, write_volume
from ranp.errors import IntegrityError, UsageError


@pytest.fixture
def directory(tmp_path):
    synthesise("decathlon", tmp_path / "set", cases=5, size=24, seed=0)
    return tmp_path / "set"


@pytest.fixture
def native(directory, tmp_path):
    """The same cases in nnU-Net's raw layout."""
    out = tmp_path / "Dataset042_Phantoms"
    for path in sorted((directory / "imagesTr").iterdir()):
        volume = read_volume(path, channels=4)
        stem = path.name.removesuffix(".nii.gz")
        for channel in range(4):
            target = out / "imagesTr" / f"{stem}_{channel:04d}.nii.gz"
            write_volume(target, volume.data[..., channel], volume.affine)
    shutil.copytree(directory / "labelsTr", out / "labelsTr")
    content = {
        "channel_names": {"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w"},
        "labels": {"background": 0, "oedema": 1, "non-enhancing": 2, "enhancing": 3},
        "numTraining": 5,
        "file_ending": ".nii.gz",
    }
    (out / "dataset.json").write_text(json.dumps(content))
    return out


def edit_json(directory, **changes):
    path = directory / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_both_layouts_hold_the_same_samples(directory, native):
    for split in ("train", "validation"):
        one, two = (open_cases("decathlon", d, split, size=16) for d in (directory, native))
        assert one.ids == two.ids
        assert one.reader.metadata == two.reader.metadata
        for index in range(len(one)):
            assert torch.equal(one[3, index]["x"], two[3, index]["x"])
            assert torch.equal(one[3, index]["y"], two[3, index]["y"])
    assert verify("decathlon", native, workers=1).ok


def test_training_crops_hold_a_label_and_validation_is_whole(directory):
    train, validation = (open_reader(directory, s, size=16) for s in ("train", "validation"))
    for seed in range(4):
        crop = train.read(0, np.random.default_rng(seed))
        assert crop["x"].shape == (4, 16, 16, 16)
        assert crop["y"].any()
    whole = validation.read(0, np.random.default_rng(0))
    assert whole["x"].shape == (4, 24, 24, 24)
    raw = read_volume(validation.cases[0].labels).data
    np.testing.assert_array_equal(whole["y"], raw)


def test_mri_is_a_z_score_over_what_is_not_zero_and_ct_over_the_body():
    rng = np.random.default_rng(0)
    brain = np.zeros((20, 20, 20))
    brain[:8] = rng.normal(900, 50, (8, 20, 20))
    ct = np.full((20, 20, 20), -1000.0)
    ct[5:] = rng.normal(40, 20, (15, 20, 20))
    mri, body = normalised(np.stack([brain, ct]), ["MRI", "CT"])
    assert not mri[8:].any()
    assert abs(mri[:8].mean()) < 1e-3 and abs(mri[:8].std() - 1) < 1e-3
    assert abs(body[5:].mean()) < 1e-3 and abs(body[5:].std() - 1) < 1e-3
    assert (body[:5] == body.min()).all()  # air is at the lower end of the window, not at the mean
    assert body.min() > -3


def test_facts_follow_from_the_headers(directory):
    facts = describe(directory)
    assert (facts.channels, facts.classes, facts.shape, facts.cases) == (4, 4, (24, 24, 24), 5)
    assert facts.size == 24


def test_regions_of_several_labels_are_measured_together(native):
    edit_json(native, labels={"background": 0, "whole": [1, 2, 3], "core": [2, 3]})
    description = read_description(native)
    assert description.labels == (0, 1, 2, 3)
    reader = open_reader(native, "train")
    task = find_dataset("decathlon").make_task(16, reader.metadata)
    truth = torch.tensor([[[[1, 2], [3, 0]]]])
    output = torch.nn.functional.one_hot(torch.tensor([[[[2, 2], [3, 0]]]]), 4).movedim(-1, 1)
    (measures,) = task.measure(output.float(), {"y": truth})
    assert measures == {"dice": 0.9, "dice whole": 1.0, "dice core": 0.8}


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"labels": {"0": "background"}}, IntegrityError, "4 channels and 0 labels"),
        ({"labels": {"0": "background", "999": "x"}}, IntegrityError, "0 to 255"),
        ({"labels": 3}, IntegrityError, "damaged"),
        ({"modality": {"1": "MRI"}}, IntegrityError, "damaged"),
        ({"labels": {"0": "background", "1": "ignore"}}, UsageError, "ignore"),
        ({"file_ending": ".nrrd"}, UsageError, "other than .nii.gz"),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(directory, changes, kind, message):
    edit_json(directory, **changes)
    with pytest.raises(kind, match=message):
        verify("decathlon", directory, workers=1)


def test_a_missing_or_torn_description(directory):
    (directory / "dataset.json").write_text("{")
    with pytest.raises(IntegrityError, match=r"dataset\.json' is damaged"):
        read_description(directory)
    (directory / "dataset.json").unlink()
    with pytest.raises(UsageError, match="Medical Segmentation Decathlon"):
        read_description(directory)


def test_problems_of_both_layouts_are_all_listed(directory, native):
    images = sorted((directory / "imagesTr").iterdir())
    labels = sorted((directory / "labelsTr").iterdir())
    volume = read_volume(labels[0])
    write_volume(labels[0], np.where(volume.data == 1, 9, volume.data), volume.affine)
    volume = read_volume(images[1], channels=4)
    write_volume(images[1], volume.data[..., :3], volume.affine)
    images[2].write_bytes(images[2].read_bytes()[:-20])
    images[3].write_bytes(b"")
    volume = read_volume(labels[4])
    write_volume(labels[4], volume.data[1:], volume.affine)
    (directory / "imagesTr" / "notes.txt").write_text("?")
    report = verify("decathlon", directory, workers=1)
    reasons = " | ".join(f"{p.path}: {p.reason}" for p in report.problems)
    assert len(report.problems) == 6, reasons
    for words in ("label 9", "3 channels, not 4", "damaged", "whole header", "geometry", "foreign"):
        assert words in reasons
    (native / "imagesTr" / "phantom_00000_0002.nii.gz").unlink()
    (native / "imagesTr" / "phantom_00001_0003.nii.gz").rename(native / "imagesTr" / "odd.nii.gz")
    report = verify("decathlon", native, workers=1)
    reasons = " | ".join(f"{p.path}: {p.reason}" for p in report.problems)
    assert "has channels [0, 1, 3], not [0, 1, 2, 3]" in reasons
    assert "not named <case>_0000.nii.gz" in reasons


def test_flipped_bits_are_caught(directory):
    path = sorted((directory / "imagesTr").iterdir())[0]
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.integers(20, len(good) - 8, 20):
        damaged = bytearray(good)
        damaged[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(damaged))
        with pytest.raises(IntegrityError, match="phantom_00000"):
            read_volume(path, channels=4)


@pytest.mark.parametrize("layout", ["directory", "native"])
def test_a_prediction_has_the_affine_of_its_input(layout, request, tmp_path):
    root = request.getfixturevalue(layout)
    metadata = open_reader(root, "train").metadata
    source = root / "imagesTr" / f"phantom_00000{'_0000' * (layout == 'native')}.nii.gz"
    affine = np.diag([-1.5, 1.25, 3, 1])
    for path in root.glob("imagesTr/phantom_00000*"):
        write_volume(
            path, read_volume(path, channels=4 if layout == "directory" else 1).data, affine
        )
    seen = []

    def network(x):
        seen.append(x.shape)
        return torch.nn.functional.one_hot(torch.from_numpy(x[0] > 0).long(), 4).movedim(-1, 0)

    target = tmp_path / "out.nii.gz"
    found = find_dataset("decathlon").predict(
        network, source, target, size=16, metadata=metadata, category=None
    )
    assert seen == [(4, 24, 24, 24)]
    written = read_volume(target)
    np.testing.assert_array_equal(written.affine, affine)
    assert sum(found["voxels"].values()) == 24**3
    assert found["voxels"]["1"] == int((written.data == 1).sum()) > 0
