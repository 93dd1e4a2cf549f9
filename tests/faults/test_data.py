"""Rows 15, 16, 17 and 33: one bad case is listed, and verification goes on to the last."""

from __future__ import annotations

import gzip
import json
import re
import struct
import tracemalloc

import numpy as np
import pytest
from typer.testing import CliRunner

from ranp import datasets
from ranp.cli import app
from ranp.datasets.brats import MODALITIES
from ranp.datasets.nifti import read_shape, read_volume, write_volume
from ranp.errors import IntegrityError

NOISE = np.random.default_rng(0).integers(0, 100, (8, 8, 8)).astype(np.int16)
FLOATS = NOISE.astype(np.float32)


def with_header(**fields):
    """Bytes of a volume whose header was edited after it was written: offset and format by name."""
    places = {"dim": (40, "<8h"), "quaternion": (256, "<3f"), "codes": (252, "<2h")}

    def edit(path):
        write_volume(path, NOISE, np.eye(4))
        raw = bytearray(gzip.decompress(path.read_bytes()))
        for name, values in fields.items():
            offset, format = places[name]
            struct.pack_into(format, raw, offset, *values)
        path.write_bytes(gzip.compress(bytes(raw)))

    return edit


def holding(volume):
    return lambda path: write_volume(path, volume, np.eye(4))


def beside(path):
    path.with_name(path.name.removesuffix(".gz")).write_bytes(path.read_bytes())


FAULTS = {
    "quaternion": (with_header(codes=(1, 0), quaternion=(3, 3, 3)), "damaged NIfTI header"),
    "affine": (with_header(codes=(1, 0), quaternion=(float("nan"),) * 3), "damaged|not finite"),
    "absurd size": (with_header(dim=(3, 30000, 30000, 30000, 1, 1, 1, 1)), "claims 30000x30000"),
    "constant": (holding(np.full_like(NOISE, 7)), "is constant: all its values are 7"),
    "absurd": (holding(FLOATS * 1e30), r"holds values from 0 to .*e\+31"),
    "twice": (beside, "a second .* of th(is|e) case"),
}


def make(kind, directory):
    """A data set of three cases, and the image of the one in the middle."""
    if kind == "volumes":
        for name in ("a", "b"):
            for index in range(3):
                write_volume(directory / name / f"{index}.nii.gz", NOISE, np.eye(4))
        return directory / "a" / "1.nii.gz"
    if kind == "brats":
        for name in ("x", "y", "z"):
            for what in MODALITIES:
                write_volume(directory / f"{name}_{what}.nii.gz", NOISE, np.eye(4))
            write_volume(directory / f"{name}_seg.nii.gz", NOISE % 2, np.eye(4))
        return directory / "y_t2.nii.gz"
    for name in ("x", "y", "z"):
        write_volume(directory / "imagesTr" / f"{name}.nii.gz", NOISE, np.eye(4))
        write_volume(directory / "labelsTr" / f"{name}.nii.gz", NOISE % 2, np.eye(4))
    content = {"modality": {"0": "MRI"}, "labels": {"0": "background", "1": "one"}}
    (directory / "dataset.json").write_text(json.dumps(content))
    return directory / "imagesTr" / "y.nii.gz"


@pytest.mark.parametrize("kind", ["decathlon", "brats", "volumes"])
def test_row_33_one_bad_case_is_listed_and_the_others_are_read(kind, tmp_path, monkeypatch):
    # The cases are checked here and not in other processes, which take seconds to start.
    monkeypatch.setattr(
        "ranp.datasets.access.check_all", lambda cases, check, **_: [check(case) for case in cases]
    )
    image = make(kind, tmp_path)
    good, whole = image.read_bytes(), datasets.verify(kind, tmp_path)
    assert whole.ok, whole.problems
    for name, (spoil, expected) in FAULTS.items():
        spoil(image)
        report = datasets.verify(kind, tmp_path)
        image.write_bytes(good)
        assert report.cases == whole.cases, name
        [problem] = report.problems
        assert image.name.removesuffix(".nii.gz") in problem.path + problem.reason
        assert re.search(expected, problem.reason), problem


def test_row_33_verification_ends_with_a_list_and_exit_4(tmp_path):
    with_header(codes=(1, 0), quaternion=(3, 3, 3))(make("decathlon", tmp_path))
    result = CliRunner().invoke(app, ["data", "verify", "decathlon", str(tmp_path), "--workers=1"])
    assert result.exit_code == 4
    assert "WRONG imagesTr/y.nii.gz" in result.stdout
    assert "1 problems" in result.stdout


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("read", [read_volume, read_shape])
def test_row_15_an_absurd_size_is_refused_before_memory_is_taken(read, compressed, tmp_path):
    path = tmp_path / "x.nii.gz"
    with_header(dim=(3, 300, 300, 300, 1, 1, 1, 1))(path)  # 51 MiB: less than a real volume
    if not compressed:
        path.write_bytes(gzip.decompress(path.read_bytes()))
    tracemalloc.start()
    with pytest.raises(IntegrityError, match="claims 300x300x300 voxels"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
