"""Volumes and clips in folders by class, and archives of volumes."""

from __future__ import annotations

import io
import json
import shutil
import zipfile

import av
import numpy as np
import pytest
import torch

from ranp.datasets import find_dataset, open_cases, synthesise, verify
from ranp.datasets.video import count_frames, probe, read_frames
from ranp.datasets.volumes import read_archive, read_array, read_arrays
from ranp.errors import IntegrityError, UsageError


@pytest.fixture
def volumes(tmp_path):
    synthesise("volumes", tmp_path / "volumes", cases=12, size=16, seed=0, classes=3)
    return tmp_path / "volumes"


def grids(count=12, edge=8, seed=0):
    return (np.random.default_rng(seed).uniform(size=(count, edge, edge, edge)) < 0.3).astype(
        np.uint8
    )


def archive(tmp_path, **arrays):
    tmp_path.mkdir(exist_ok=True)
    np.savez_compressed(tmp_path / "shapes.npz", **arrays)
    return tmp_path


# --- splits ---------------------------------------------------------------------------------


def test_folds_spread_every_class(volumes):
    train, validation = (
        open_cases("volumes", volumes, s, size=16) for s in ("train", "validation")
    )
    assert len(train) + len(validation) == 12
    assert not set(train.ids) & set(validation.ids)
    assert {id.split("/")[0] for id in train.ids} == {"Airplane", "Bag", "Cap"}


def test_folders_decide_where_there_are_some(volumes, tmp_path):
    root = tmp_path / "split"
    for number, path in enumerate(sorted(volumes.glob("*/*.npy"))):
        part = root / ("test" if number % 4 == 0 else "train") / path.parent.name
        part.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, part)
    assert len(open_cases("volumes", root, "train")) == 9
    validation = open_cases("volumes", root, "validation")
    assert validation.ids == open_cases("volumes", root, "test").ids
    assert all(id.startswith("test/") for id in validation.ids)
    with pytest.raises(UsageError, match="fold 1 does not exist"):
        open_cases("volumes", root, "train", fold=1)
    assert verify("volumes", root, workers=1).counts["split"] == {"test": 3, "train": 9}


def test_foreign_files_and_empty_directories(volumes, tmp_path):
    (volumes / "Bag" / "notes.txt").write_text("?")
    (volumes / "Bag" / ".hidden").write_text("?")
    (volumes / "Empty").mkdir()
    report = verify("volumes", volumes, workers=1)
    assert [p.path for p in report.problems] == ["Bag/notes.txt"]
    assert report.notes == ("class Empty: no case",)
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match="no folders by class"):
        verify("volumes", tmp_path / "none")


# --- volumes --------------------------------------------------------------------------------


def test_occupancy_stays_and_intensities_are_normalised(tmp_path):
    folder = tmp_path / "set" / "a"
    folder.mkdir(parents=True)
    occupancy, image = grids(1)[0], np.random.default_rng(0).normal(300, 40, (2, 8, 8, 8))
    for number in range(5):
        np.save(folder / f"occupancy{number}.npy", occupancy)
        np.savez(folder / f"image{number}.npz", image)
    reader = open_cases("volumes", tmp_path / "set", "validation", size=8).reader
    for index, id in enumerate(reader.ids):
        x = reader.read(index, np.random.default_rng(0))["x"]
        if "occupancy" in id:
            np.testing.assert_array_equal(x[0], occupancy)
        else:
            assert x.shape == (2, 8, 8, 8)
            np.testing.assert_allclose(x.mean((1, 2, 3)), 0, atol=1e-5)
            np.testing.assert_allclose(x.std((1, 2, 3)), 1, atol=1e-5)


def test_training_shifts_and_validation_does_not(volumes):
    train = open_cases("volumes", volumes, "train", size=16)
    assert len({train[epoch, 0]["x"].numpy().tobytes() for epoch in range(8)}) > 1
    validation = open_cases("volumes", volumes, "validation", size=16)
    assert torch.equal(validation[0, 0]["x"], validation[1, 0]["x"])
    padded = open_cases("volumes", volumes, "validation", size=24)[0]["x"]
    assert torch.equal(padded[:, 4:20, 4:20, 4:20], validation[0]["x"])


def test_packed_grids_are_unpacked(tmp_path):
    x, y = grids(), np.arange(12) % 3
    packed = np.packbits(x.reshape(12, -1), axis=1)
    names = np.array(["a", "b", "c"])
    one = archive(tmp_path / "one", vox_packed=packed, y=y, class_names=names, n_train=8)
    two = archive(tmp_path / "two", x=x, y=y, class_names=names, n_train=8)
    for root in (one, two):
        train, validation = (
            open_cases("volumes", root, s, size=8) for s in ("train", "validation")
        )
        assert (len(train), len(validation)) == (8, 4)
        assert train.reader.metadata == {"classes": {"0": "a", "1": "b", "2": "c"}}
        for index in range(4):
            assert torch.equal(validation[index]["x"][0], torch.from_numpy(x[8 + index]).float())
            assert int(validation[index]["y"]) == y[8 + index]
        assert verify("volumes", root, workers=1).counts["split"] == {"test": 4, "train": 8}
    facts = find_dataset("volumes").describe(one)
    assert (facts.channels, facts.classes, facts.shape, facts.size) == (1, 3, (8, 8, 8), 24)


def test_archives_as_medmnist_has_them(tmp_path):
    x, y = grids(), (np.arange(12) % 2)[:, None]
    parts = {"train": slice(0, 6), "val": slice(6, 9), "test": slice(9, 12)}
    arrays = {f"{name}_images": x[part] for name, part in parts.items()}
    arrays |= {f"{name}_labels": y[part] for name, part in parts.items()}
    root = archive(tmp_path / "med", **arrays)
    sizes = [len(open_cases("volumes", root, s)) for s in ("train", "validation", "test")]
    assert sizes == [6, 3, 3]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": grids()}, "needs 'x' or 'vox_packed', and 'y'"),
        ({"x": grids(), "y": np.arange(3)}, "3 whole labels for 12 volumes"),
        ({"x": grids(), "y": np.arange(12) / 2}, "whole labels"),
        ({"x": grids(), "y": np.arange(12) - 1}, "labels -1 to 10"),
        ({"x": grids(), "y": np.arange(12), "class_names": np.array(["a"])}, "for 1 classes"),
        ({"vox_packed": np.zeros((12, 7), np.uint8), "y": np.arange(12)}, "bits of a cube"),
        ({"x": np.array([object()] * 12), "y": np.arange(12)}, "damaged or not an array"),
    ],
)
def test_archives_that_make_no_sense_are_refused(tmp_path, arrays, message):
    root = archive(tmp_path / "bad", **arrays)
    with pytest.raises(IntegrityError, match=message):
        verify("volumes", root, workers=1)


def test_every_flipped_bit_of_an_archive_is_caught_or_harmless(tmp_path):
    root = archive(tmp_path / "flip", x=grids(), y=np.arange(12) % 3)
    path = root / "shapes.npz"
    good, expected = path.read_bytes(), read_arrays(root / "shapes.npz")
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(good), 60):
        damaged = bytearray(good)
        damaged[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(damaged))
        try:
            arrays = read_arrays(path)
        except IntegrityError:
            continue
        for name in arrays.keys() & expected.keys():  # a name or a date may be hit
            np.testing.assert_array_equal(arrays[name], expected[name])


def test_bombs_and_lying_headers_are_refused(tmp_path, monkeypatch):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (100_000, 1000, 1000)}
    )
    path = tmp_path / "lying.npy"
    path.write_bytes(header.getvalue() + b"\0" * 64)
    with pytest.raises(IntegrityError, match=r"lying\.npy"):
        read_array(path)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("x.npy", b"\0" * (12 * 2**20))
    monkeypatch.setattr("ranp.datasets.volumes._MAX_BYTES", 10 * 2**20)
    with pytest.raises(IntegrityError, match="claims to unpack to 12 MiB"):
        read_arrays(tmp_path / "bomb.npz")


@pytest.mark.parametrize("flag", [0x01, 0x20])  # encrypted, patched data
def test_archives_with_flipped_flags_are_refused(flag, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3)))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[content.index(b"PK\x03\x04") + 6] |= flag
    content[content.index(b"PK\x01\x02") + 8] |= flag
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(IntegrityError, match=r"x\.npz' is damaged or not an array"):
        read_arrays(tmp_path / "x.npz")


def test_problems_of_volumes_are_all_listed(volumes):
    paths = sorted(volumes.glob("*/*.npy"))
    paths[0].write_bytes(paths[0].read_bytes()[:-10])
    paths[1].write_bytes(b"")
    np.save(paths[2], np.full((4, 4, 4), np.nan))
    np.save(paths[3], np.zeros((4, 4)))
    report = verify("volumes", volumes, workers=1)
    reasons = " | ".join(p.reason for p in report.problems)
    assert len(report.problems) == 4
    for words in ("bytes where", "damaged", "NaN or infinity", "shape (1, 4, 4)"):
        assert words in reasons or words.replace("(1, ", "(") in reasons


# --- clips ----------------------------------------------------------------------------------


def write_picture(path, frame):
    with av.open(str(path), "w", format="image2") as container:
        stream = container.add_stream("png", rate=1)
        stream.height, stream.width = frame.shape[:2]
        stream.pix_fmt = "rgb24"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))


@pytest.fixture
def clips(tmp_path):
    synthesise("clips", tmp_path / "clips", cases=6, size=32, seed=0, classes=2)
    return tmp_path / "clips"


def test_folders_of_frames_are_clips(clips):
    video = next(clips.glob("*/clip_00000.avi"))
    frames = read_frames(video, 0, 20)
    folder = video.with_suffix("")
    folder.mkdir()
    for number, frame in enumerate(frames):
        write_picture(folder / f"{number:04d}.png", frame)
    assert (probe(folder).frames, probe(folder).height) == (20, 32)
    np.testing.assert_array_equal(read_frames(folder, 3, 5), frames[3:8])
    assert count_frames(folder) == 20
    video.unlink()
    report = verify("clips", clips, workers=1)
    assert report.ok
    assert report.cases == 6
    (folder / "0007.png").write_bytes((folder / "0007.png").read_bytes()[:60])
    (problem,) = verify("clips", clips, workers=1).problems
    assert "0007.png" in problem.reason
    with pytest.raises(UsageError, match="has 20 frames"):
        read_frames(folder, 18, 5)


def test_clips_of_mp4_are_read_frame_by_frame(tmp_path):
    frames = np.random.default_rng(0).integers(0, 255, (20, 32, 48, 3), np.uint8)
    frames[:] = np.arange(20)[:, None, None, None] * 12  # even colours survive the codec
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=30)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    assert count_frames(path) == 20
    read = read_frames(path, 7, 4).astype(int)
    assert np.abs(read - frames[7:11]).max() < 6


def test_clips_are_described_and_damaged_ones_named(clips):
    facts = find_dataset("clips").describe(clips)
    assert (facts.channels, facts.classes, facts.cases, facts.size) == (3, 2, 6, 32)
    path = next(clips.glob("*/clip_00001.avi"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (problem,) = verify("clips", clips, workers=1).problems
    assert "clip_00001" in problem.path


@pytest.mark.parametrize("kind", ["volumes", "clips"])
def test_a_prediction_lists_the_likeliest_classes(kind, tmp_path):
    root = tmp_path / "set"
    synthesise(kind, root, cases=4, size=32, seed=0, classes=2)
    source = sorted(p for p in root.rglob("*") if p.is_file())[0]
    metadata = open_cases(kind, root, "train").reader.metadata
    found = find_dataset(kind).predict(
        lambda x: torch.tensor([0.0, np.log(3.0)]),
        source,
        tmp_path / "top.json",
        size=32,
        metadata=metadata,
        category=None,
    )
    names = metadata["classes"]
    assert [row["class"] for row in found["top5"]] == [names["1"], names["0"]]
    assert found["top5"][0]["probability"] == pytest.approx(0.75)
    assert json.loads((tmp_path / "top.json").read_text()) == found["top5"]


def test_an_archive_is_read_once_for_all_its_volumes(tmp_path):
    root = archive(tmp_path / "once", x=grids(), y=np.arange(12) % 3)
    read_archive.cache_clear()
    cases = open_cases("volumes", root, "train", size=8)
    for _ in cases:
        pass
    assert read_archive.cache_info().misses == 1
