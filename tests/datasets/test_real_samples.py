"""The readers on real data. Numbers are from the description that comes with the samples."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ranp.datasets import brats, hippocampus, open_cases, shapenet, ucf101, verify
from ranp.datasets.clips import ClipReader
from ranp.datasets.frames import to_input
from ranp.datasets.nifti import read_volume
from ranp.datasets.parts import BY_SYNSET
from ranp.datasets.video import count_frames, probe, read_frames
from ranp.datasets.voxels import EMPTY, voxelize

pytestmark = pytest.mark.realdata
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("folder", "count"), [("pts_seg", 16), ("normal", 32)])
def test_shapes_load_and_their_labels_are_the_category_s(shared_data, folder, count):
    shapes = shapenet.inventory(shared_data / "shapenet_part" / folder).cases
    assert len(shapes) == count
    assert Counter(shape.category.name for shape in shapes) == dict.fromkeys(
        (category.name for category in BY_SYNSET.values()), count // 16
    )
    for shape in shapes:
        points, labels = shapenet.read_points(shape)
        assert 1900 < len(points) < 2900
        grid = voxelize(points, labels, 64).label_grid()
        assert set(np.unique(grid)) <= {*shape.category.labels, EMPTY}


def test_official_lists_of_shapes(shared_data):
    lists = shapenet._split_lists(shared_data / "shapenet_part/normal")
    counts = Counter(split for splits in lists.values() for split in splits)
    assert counts == {"train": 12137, "validation": 1870, "test": 2874}


def test_brats_case(shared_data):
    (case,) = brats.inventory(shared_data / "brats").cases
    assert case.id == "TCGA-FG-6692"
    images, labels = brats.read_case(case)
    assert images.shape == (4, 240, 240, 155)
    assert images.dtype == np.int16
    assert set(np.unique(labels)) == {0, 1, 2, 4}
    reader = brats.BratsReader((case,), 128)
    sample = reader.read(0, RNG)
    assert sample["x"].shape == (4, 128, 128, 128)
    assert sample["y"].any()
    assert verify("brats", shared_data / "brats", workers=1).ok


def test_hippocampus_pairs_pass_and_orphans_are_named(shared_data):
    report = verify("hippocampus", shared_data / "hippocampus")
    assert report.ok
    assert report.counts["cases"] == {"paired": 260, "unpaired": 3}
    assert report.counts["fold"] == {str(fold): 52 for fold in range(5)}
    assert [note.split(":")[0] for note in report.notes] == [
        "hippocampus_010",
        "hippocampus_118",
        "hippocampus_281",
    ]


def test_hippocampus_shapes_and_samples(shared_data):
    cases = [c for c in hippocampus.inventory(shared_data / "hippocampus").cases if c.fold == 0]
    for case in cases:
        shape = read_volume(case.images[0]).data.shape
        assert all(31 <= s <= 59 for s in (shape[0], shape[1]))
        assert 24 <= shape[2] <= 47
    samples = open_cases("hippocampus", shared_data / "hippocampus", "validation")
    assert len(samples) == 52
    assert samples[0]["x"].shape == (1, 64, 64, 64)
    assert samples[0]["x"].abs().max() < 20  # normalised, whatever the volume's own scale
    assert set(samples[0]["y"].unique().tolist()) == {0, 1, 2}


def test_official_lists_of_clips(shared_data):
    folder = shared_data / "ucf101/ucfTrainTestlist"
    classes = ucf101._read_classes(folder / "classInd.txt")
    roles = ucf101._read_lists(folder, classes)
    assert len(classes) == 101
    assert len(roles) == 13320
    for number, (train, test) in enumerate([(9537, 3783), (9586, 3734), (9624, 3696)]):
        counts = Counter(splits[number] for _, splits in roles.values())
        assert (counts["train"], counts["validation"]) == (train, test)
    class_name, _ = roles["v_HandStandPushups_g01_c01"]
    assert class_name == "HandstandPushups"


def test_clips(shared_data):
    directory = shared_data / "ucf101"
    for split, name, frames in (
        ("validation", "v_ApplyEyeMakeup_g01_c01", 164),
        ("train", "v_SoccerJuggling_g23_c01", 240),
    ):
        reader = ucf101.open_reader(directory, split)
        assert reader.ids == [name]
        path = reader.cases[0].path
        assert count_frames(path) == probe(path).frames == frames
        whole = read_frames(path, 0, frames)
        assert whole.shape == (frames, 240, 320, 3)
        channels = np.corrcoef(whole[::40].reshape(-1, 3).T)[np.triu_indices(3, 1)]
        assert channels.min() > 0.94  # generated clips are held to the same
        for start in (1, 50, 97, frames - 16):  # one clip has B-frames, the other key frames
            np.testing.assert_array_equal(read_frames(path, start, 16), whole[start : start + 16])
        assert reader.read(0, RNG)["x"].shape == (3, 16, 112, 112)
    exact = ucf101.open_reader(directory, "train", size=240)
    centre = to_input(whole[112:128, :, 40:280])
    sample = ClipReader(exact.cases, 240, training=False).read(0, RNG)
    np.testing.assert_allclose(sample["x"], centre, atol=1e-6)
