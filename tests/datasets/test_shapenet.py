from __future__ import annotations

import hashlib
import json
import os
import shutil

import numpy as np
import pytest

from ranp.datasets.shapenet import check, inventory, md5_split, open_reader, read_points
from ranp.datasets.synthetic.shapes import draw_shape
from ranp.datasets.voxels import EMPTY, voxelize
from ranp.errors import IntegrityError, UsageError

SHAPES = [draw_shape(0, index) for index in range(16)]
RNG = np.random.default_rng(0)  # what is read here has nothing random about it


def write_pair(points_path, labels_path, shape):
    points_path.parent.mkdir(parents=True, exist_ok=True)
    labels_path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(points_path, shape.points, fmt="%.5f")
    np.savetxt(labels_path, shape.labels - shape.category.first + 1, fmt="%d")


@pytest.fixture(scope="module")
def written_once(tmp_path_factory):
    root = tmp_path_factory.mktemp("v0")
    for number, shape in enumerate(SHAPES):
        folder = root / shape.category.synset
        write_pair(folder / f"points/{number}.pts", folder / f"points_label/{number}.seg", shape)
    return root


@pytest.fixture
def v0(written_once, tmp_path):
    return shutil.copytree(written_once, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def challenge(tmp_path):
    for number, shape in enumerate(SHAPES):
        name = ("train", "val", "test")[number % 3]
        data, label = tmp_path / f"{name}_data", tmp_path / f"{name}_label"
        synset = shape.category.synset
        write_pair(data / synset / f"{number}.pts", label / synset / f"{number}.seg", shape)
    return tmp_path


@pytest.fixture
def normal(tmp_path):
    lists = {"train": [], "val": [], "test": []}
    for number, shape in enumerate(SHAPES):
        folder = tmp_path / shape.category.synset
        folder.mkdir()
        normals = np.zeros_like(shape.points)
        table = np.concatenate([shape.points, normals, shape.labels[:, None]], axis=1)
        np.savetxt(folder / f"{number}.txt", table, fmt="%.6f")
        lists[("train", "train", "val", "test")[number % 4]].append(
            f"shape_data/{shape.category.synset}/{number}"
        )
    (tmp_path / "train_test_split").mkdir()
    for name, entries in lists.items():
        (tmp_path / f"train_test_split/shuffled_{name}_file_list.json").write_text(
            json.dumps(entries)
        )
    return tmp_path


@pytest.mark.parametrize("layout", ["v0", "challenge", "normal"])
def test_all_layouts_give_the_same_shapes(layout, request):
    directory = request.getfixturevalue(layout)
    shapes = {case.id: case for case in inventory(directory).cases}
    assert len(shapes) == 16
    for number, shape in enumerate(SHAPES):
        points, labels = read_points(shapes[f"{shape.category.synset}/{number}"])
        np.testing.assert_allclose(points, shape.points, atol=1e-9)
        np.testing.assert_array_equal(labels, shape.labels)


def test_reader_gives_voxels_within_the_category_s_parts(v0):
    reader = open_reader(v0, "train", size=32)
    sample = reader.read(0, RNG)
    shape = next(s for s in SHAPES if s.category.synset == reader.ids[0].split("/")[0])
    oracle = voxelize(shape.points, shape.labels, 32)
    np.testing.assert_array_equal(sample["y"], oracle.label_grid())
    np.testing.assert_array_equal(sample["x"], oracle.occupancy())
    assert sample["category"] == shape.category.name
    assert set(np.unique(sample["y"])) <= {*shape.category.labels, EMPTY}


def test_md5_decides_the_split_of_train_and_val(challenge):
    for path in challenge.glob("*_data/*/*.pts"):
        digest = hashlib.md5(path.read_bytes()).hexdigest()
        expected = "train" if digest[0] in "01234567" else "validation"
        assert md5_split(path.read_bytes()) == expected
        split = "test" if path.parts[-3] == "test_data" else expected
        assert f"{path.parent.name}/{path.stem}" in open_reader(challenge, split).ids
    sizes = [len(open_reader(challenge, s).ids) for s in ("train", "validation", "test")]
    assert sum(sizes) == 16
    assert sizes[2] == 5


def test_lists_decide_the_split(normal):
    assert len(open_reader(normal, "train").ids) == 8
    assert len(open_reader(normal, "validation").ids) == 4
    assert len(open_reader(normal, "test").ids) == 4


def test_a_shape_in_two_lists_is_read_in_both_and_noted(normal):
    path = normal / "train_test_split/shuffled_val_file_list.json"
    twice = f"shape_data/{SHAPES[0].category.synset}/0"
    path.write_text(json.dumps([*json.loads(path.read_text()), twice]))
    assert len(open_reader(normal, "train").ids) == 8
    assert len(open_reader(normal, "validation").ids) == 5
    (note,) = inventory(normal).notes
    assert "1 (02691156/0) listed in more than one split" in note


def test_listed_shapes_that_are_absent_are_a_problem(normal):
    next(normal.glob("04379243/*.txt")).unlink()
    (problem,) = inventory(normal).problems
    assert "04379243/15" in problem.reason


def test_cache_gives_the_same_and_notices_changes(v0, tmp_path):
    cache = tmp_path / "cache"
    plain, cached = (
        open_reader(v0, "train", size=32),
        open_reader(v0, "train", size=32, cache=cache),
    )
    for _ in range(2):
        np.testing.assert_array_equal(plain.read(0, RNG)["y"], cached.read(0, RNG)["y"])
    (stored,) = cache.rglob("*.npz")
    first = stored.read_bytes()

    labels = cached.cases[0].labels
    labels.write_text("\n".join(["1"] * len(labels.read_text().split())) + "\n")
    os.utime(labels, ns=(1, 1))
    y = cached.read(0, RNG)["y"]
    assert set(np.unique(y)) == {cached.cases[0].category.first, EMPTY}

    stored.write_bytes(first[:100])  # a torn cache is made again
    np.testing.assert_array_equal(cached.read(0, RNG)["y"], y)


@pytest.mark.parametrize(
    ("suffix", "content", "reason"),
    [
        ("pts", "", "empty"),
        ("pts", "0 0 zero\n", "is not a table of numbers"),
        ("pts", "0 0 0\n1 1\n", "is not a table of numbers"),
        ("pts", "1 1\n2 2\n", "2 columns"),
        ("pts", "0.5 0.5 nan\n", "NaN or infinity"),
        ("pts", "0.5 0.5 0.5\n", "labels for 1 points"),
        ("seg", "1\n1\n", "2 labels for"),
        ("pts", b"\x89PNG\r\n\x1a\n\xff", "is not a table of numbers"),
    ],
)
def test_damaged_shapes_are_named(v0, suffix, content, reason):
    shape = inventory(v0).cases[4]
    path = shape.points if suffix == "pts" else shape.labels
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (problem,) = check(shape).problems
    assert reason in problem.reason
    assert str(shape.points) == problem.path


@pytest.mark.parametrize("label", ["0", "5", "1.5"])
def test_labels_outside_the_category_are_refused(v0, label):
    shape = next(s for s in inventory(v0).cases if s.category.name == "Chair")
    lines = shape.labels.read_text().split()
    shape.labels.write_text("\n".join([label, *lines[1:]]))
    with pytest.raises(
        IntegrityError, match=rf"label {label}, which is not a part of Chair \(1 to 4\)"
    ):
        read_points(shape)


def test_orphans_are_noted_and_foreign_files_are_problems(v0):
    folder = v0 / "03001627"
    next(folder.glob("points_label/*.seg")).unlink()
    (folder / "points/readme.md").write_text("?")
    (folder / "points/.DS_Store").write_text("?")
    found = inventory(v0)
    assert found.notes == ["03001627/4: no label; skipped"]
    assert [p.path for p in found.problems] == [str(folder / "points/readme.md")]
    assert check(next(c for c in found.cases if c.labels is None)).counts == (
        ("split", "unlabelled"),
    )
    assert not any(i.startswith("03001627") for i in open_reader(v0, "train").ids)


@pytest.mark.parametrize("layout", ["v0", "challenge", "normal"])
def test_folders_of_unknown_categories_are_problems(layout, request):
    directory = request.getfixturevalue(layout)
    stranger = directory / ("train_data" if layout == "challenge" else "") / "99999999"
    stranger.mkdir()
    assert [problem.path for problem in inventory(directory).problems] == [str(stranger)]


def test_wrong_use(v0, tmp_path):
    with pytest.raises(UsageError, match="no split 'val'"):
        open_reader(v0, "val")
    with pytest.raises(UsageError, match="fold 1"):
        open_reader(v0, "train", fold=1)
    with pytest.raises(UsageError, match="no labelled shape"):
        open_reader(v0, "test")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no ShapeNet part data"):
        inventory(tmp_path / "empty")
