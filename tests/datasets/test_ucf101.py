from __future__ import annotations

import shutil

import numpy as np
import pytest

from ranp.datasets import open_cases, synthesise, synthetic_cases, verify
from ranp.datasets.synthetic.motion import MOTIONS
from ranp.datasets.ucf101 import inventory, open_reader
from ranp.datasets.video import read_frames, write_video
from ranp.errors import IntegrityError, UsageError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ucf101")
    synthesise("ucf101", directory, cases=12, size=32, seed=0, classes=3)
    return directory


@pytest.fixture
def directory(written, tmp_path):
    return shutil.copytree(written, tmp_path / "ucf101")


def test_splits_follow_the_lists(directory):
    for fold in range(3):
        test_list = (directory / f"ucfTrainTestlist/testlist0{fold + 1}.txt").read_text().split()
        validation = open_reader(directory, "validation", fold=fold)
        assert sorted(validation.ids) == sorted(line.split("/")[1][:-4] for line in test_list)
        assert len(open_reader(directory, "train", fold=fold).ids) + len(validation.ids) == 12


def test_samples(directory):
    train = open_reader(directory, "train", size=24)
    samples = [train.read(0, np.random.default_rng(seed)) for seed in range(6)]
    assert {s["x"].shape for s in samples} == {(3, 16, 24, 24)}
    assert len({s["x"].tobytes() for s in samples}) == 6
    assert train.read(0, np.random.default_rng(3))["x"].tobytes() == samples[3]["x"].tobytes()
    names = [motion.name for motion in MOTIONS[:3]]
    for index, clip in enumerate(train.cases):
        assert train.read(index, np.random.default_rng(0))["y"] == names.index(clip.class_name)


def test_validation_is_the_centre_of_the_middle_frames(directory):
    reader = open_reader(directory, "validation", size=32)
    frames = read_frames(reader.cases[0].path, 12, 16)  # (40 - 16) / 2
    from ranp.datasets.frames import to_input

    x = reader.read(0, np.random.default_rng(0))["x"]
    np.testing.assert_allclose(x, to_input(frames[:, :, 5:37]), atol=1e-6)  # (42 - 32) / 2


def test_colours_are_divided_or_left_as_the_authors_had_them(directory):
    frames = read_frames(open_reader(directory, "validation").cases[0].path, 12, 16)[:, :, 5:37]
    expected = frames.transpose(3, 0, 1, 2) - np.float32([114.7748, 107.7354, 99.475]).reshape(
        3, 1, 1, 1
    )
    for divisor in (255, 1):
        (x, *_) = open_cases(
            "ucf101", directory, "validation", size=32, options={"divisor": divisor}
        )
        np.testing.assert_allclose(x["x"] * divisor, expected, atol=1e-4)
        drawn = synthetic_cases(
            "ucf101", size=32, samples=1, seed=0, classes=3, options={"divisor": divisor}
        )[0]["x"]
        red = drawn[0].numpy() * divisor + 114.7748
        np.testing.assert_allclose(red, np.clip(np.rint(red), 0, 255), atol=1e-3)


def test_a_flat_folder_is_read_too(directory):
    (directory / "videos").mkdir()
    for path in list(directory.rglob("*.avi")):
        path.rename(directory / "videos" / path.name)
    assert len(inventory(directory).cases) == 12


def test_spelling_of_handstand_pushups(directory):
    """The class is HandstandPushups, the files are v_HandStandPushups, and lists use both."""
    lists = directory / "ucfTrainTestlist"
    old = MOTIONS[0].name
    (directory / old).rename(directory / "HandstandPushups")
    for path in (directory / "HandstandPushups").iterdir():
        path.rename(path.with_name(path.name.replace(old, "HandstandPushups")))
    for path in lists.iterdir():
        text = path.read_text().replace(f"{old}/v_{old}", "HandstandPushups/v_HandStandPushups")
        path.write_text(text.replace(old, "HandstandPushups"))
    clips = inventory(directory).cases
    assert len(clips) == 12
    handstands = [clip for clip in clips if clip.class_name == "HandstandPushups"]
    assert len(handstands) == 4
    assert {clip.label for clip in handstands} == {0}
    assert verify("ucf101", directory, workers=1).ok


def test_short_clips_are_flagged_and_repeated(directory):
    clip = open_reader(directory, "validation").cases[0]
    write_video(clip.path, read_frames(clip.path, 0, 5))
    report = verify("ucf101", directory, workers=1)
    assert report.counts["length"] == {"shorter than 16 frames": 1}
    x = open_reader(directory, "validation", size=32).read(0, np.random.default_rng(0))["x"]
    np.testing.assert_array_equal(x[:, 0], x[:, 5])
    assert x.shape == (3, 16, 32, 32)


def test_problems_are_all_listed(directory):
    paths = sorted(directory.rglob("*.avi"))
    paths[0].write_bytes(paths[0].read_bytes()[:4000])
    paths[1].write_bytes(b"")
    paths[2].unlink()
    shutil.copy(paths[3], paths[3].with_name("v_Other_g01_c01.avi"))
    report = verify("ucf101", directory, workers=1)
    assert len(report.problems) == 3
    assert {p.path for p in report.problems} == {
        str(paths[0].relative_to(directory)),
        str(paths[1].relative_to(directory)),
        "ucfTrainTestlist",
    }
    assert paths[2].stem in next(p.reason for p in report.problems if p.path == "ucfTrainTestlist")
    assert report.notes == ("1 (v_other_g01_c01) in no list; skipped",)


def test_damaged_lists(directory):
    lists = directory / "ucfTrainTestlist"
    (lists / "testlist01.txt").write_text((lists / "trainlist01.txt").read_text())
    with pytest.raises(IntegrityError, match="both lists of split 1"):
        inventory(directory)
    (lists / "classInd.txt").write_text("1 Something\n")
    with pytest.raises(IntegrityError, match="unknown class"):
        inventory(directory)
    shutil.rmtree(lists)
    with pytest.raises(UsageError, match="ucfTrainTestlist"):
        inventory(directory)


def test_wrong_use(directory):
    with pytest.raises(UsageError, match="no split 'test'"):
        open_reader(directory, "test")
    with pytest.raises(UsageError, match="fold must be 0 to 2, the three official splits, got 3"):
        open_reader(directory, "train", fold=3)
