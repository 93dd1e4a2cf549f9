from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from ranp.datasets import synthesise, verify
from ranp.datasets.brats import MODALITIES, check, inventory, make_task, open_reader
from ranp.datasets.nifti import read_volume, write_volume
from ranp.errors import UsageError

SIZE = 24


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("brats")
    synthesise("brats", directory, cases=6, size=SIZE, seed=0)
    return directory


@pytest.fixture
def directory(written, tmp_path):
    return shutil.copytree(written, tmp_path / "brats")


def change(path, edit):
    volume = read_volume(path)
    data = volume.data.copy()
    write_volume(path, np.asarray(edit(data)), volume.affine)


def seg(directory, number):
    return sorted(directory.rglob("*_seg.nii.gz"), key=lambda path: path.name)[number]


def with_3(labels):
    return np.where(labels == 4, 3, labels).astype(np.uint8)


def problems(directory):
    return {
        problem.path: problem.reason for problem in verify("brats", directory, workers=1).problems
    }


def test_regions_are_the_paper_s():
    nothing = torch.zeros(1, 5, 1, 1, 1)  # the first class, which is the background
    missed = {}
    for label in (0, 1, 2, 4):
        truth = {"y": torch.full((1, 1, 1, 1), label)}
        [measures] = make_task(window=1, metadata={}).measure(nothing, truth)
        missed[label] = {name for name in ("ET", "TC", "WT") if measures[f"dice {name}"] == 0}
    assert missed == {0: set(), 1: {"TC", "WT"}, 2: {"WT"}, 4: {"ET", "TC", "WT"}}


def test_training_gives_normalised_crops_that_hold_a_label(directory):
    reader = open_reader(directory, "train", size=16)
    for index in range(len(reader.ids)):
        sample = reader.read(index, np.random.default_rng(index))
        assert sample["x"].shape == (4, 16, 16, 16)
        assert sample["x"].dtype == np.float32
        assert sample["y"].shape == (16, 16, 16)
        assert set(np.unique(sample["y"])) <= {0, 1, 2, 4}
        assert sample["y"].any()


def test_validation_gives_whole_volumes_normalised_over_the_brain(directory):
    reader = open_reader(directory, "validation")
    sample = reader.read(0, np.random.default_rng(0))
    assert sample["x"].shape == (4, SIZE, SIZE, SIZE)
    for path, channel in zip(reader.cases[0].images, sample["x"], strict=True):
        brain = read_volume(path).data != 0
        assert abs(channel[brain].mean()) < 1e-3
        assert abs(channel[brain].std() - 1) < 1e-3
        assert not channel[~brain].any()


def test_image_and_labels_are_cropped_alike(directory):
    whole = open_reader(directory, "validation").read(0, np.random.default_rng(0))
    reader = open_reader(directory, "train", size=SIZE)
    crop = reader.read(0, np.random.default_rng(0))  # as large as the volume: nothing is lost
    raw = read_volume(reader.cases[0].labels).data
    np.testing.assert_array_equal(crop["y"], raw)
    assert crop["x"].shape == whole["x"].shape


def test_folds_partition_the_cases(directory):
    everything = {case.id for case in inventory(directory).cases}
    validated = []
    for fold in range(5):
        validation = open_reader(directory, "validation", fold=fold).ids
        assert set(validation) | set(open_reader(directory, "train", fold=fold).ids) == everything
        validated += validation
    assert sorted(validated) == sorted(everything)


def test_flat_layouts_are_read_too(directory, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in directory.rglob("*.nii.gz"):
        shutil.copy(path, flat / path.name)
    cases = inventory(flat).cases
    assert len(cases) == 6
    assert {case.grade for case in cases} == {"ungraded"}
    assert [p.name.split("_")[-1] for p in cases[0].images] == [f"{m}.nii.gz" for m in MODALITIES]


def test_enhancing_3_in_a_flat_data_set_is_said_and_read_as_4(directory, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in directory.rglob("*.nii.gz"):
        shutil.copy(path, flat / path.name)
    before = open_reader(flat, "train", size=SIZE).read(0, np.random.default_rng(0))["y"]
    for number in range(6):
        change(seg(flat, number), with_3)
    report = verify("brats", flat, workers=1)
    assert report.ok
    assert report.notes == ("enhancing tumour is labelled 3 in this data set; it is read as 4",)
    after = open_reader(flat, "train", size=SIZE).read(0, np.random.default_rng(0))["y"]
    np.testing.assert_array_equal(before, after)
    # Mixed: one case with 4 among five with 3.
    change(seg(flat, 2), lambda labels: np.where(labels == 3, 4, labels).astype(np.uint8))
    assert problems(flat).keys() == {"Synthetic_00002_1"}


def test_labels_0_to_3_in_the_2018_layout_are_a_problem(directory):
    change(seg(directory, 1), with_3)
    (reason,) = problems(directory).values()
    assert "label 3" in reason
    assert "Synthetic_00001_1_seg" in reason


@pytest.mark.parametrize(
    ("labels", "reason"), [((0, 5), "label 5"), ((3, 4), "labels 3 and 4"), ((0, 200), "label 200")]
)
def test_wrong_labels_are_problems(directory, labels, reason):
    change(seg(directory, 0), lambda data: np.resize(np.array(labels, np.uint8), data.shape))
    assert reason in "".join(problems(directory).values())


def test_geometry_that_differs_between_modalities(directory):
    case = inventory(directory).cases[0]
    change(case.images[2], lambda data: data[:-1])
    assert "differ in geometry" in check(case).problems[0].reason
    volume = read_volume(case.images[0])
    shifted = volume.affine.copy()
    shifted[0, 3] += 1
    write_volume(case.images[2], volume.data, shifted)
    assert case.images[2].name in check(case).problems[0].reason
    write_volume(case.images[2], volume.data, volume.affine)
    assert not check(case).problems


def test_nan_missing_and_truncated_files_are_all_listed(directory):
    cases = inventory(directory).cases
    change(cases[0].images[0], lambda data: np.where(data > 0, np.nan, 0).astype(np.float32))
    cases[1].images[1].unlink()
    cases[2].images[3].write_bytes(cases[2].images[3].read_bytes()[:500])
    (directory / "HGG" / "other.nii.gz").write_bytes(b"?")
    found = problems(directory)
    assert len(found) == 4
    text = str(found)
    for words in ("NaN", "has no t1 volume", "damaged", "not named"):
        assert words in text


def test_a_case_without_segmentation_is_noted_and_skipped(directory):
    seg(directory, 0).unlink()
    report = verify("brats", directory, workers=1)
    assert report.ok
    assert report.notes == ("Synthetic_00000_1: no segmentation; skipped",)
    assert report.counts["fold"]["none"] == 1
    ids = open_reader(directory, "train").ids + open_reader(directory, "validation").ids
    assert len(ids) == 5


def test_wrong_use(directory, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no BraTS data"):
        inventory(tmp_path / "empty")
    with pytest.raises(UsageError, match="no split 'test'"):
        open_reader(directory, "test")
