from __future__ import annotations

import gzip
import subprocess
import sys
import textwrap
from pathlib import Path

import nibabel
import numpy as np
import pytest

from ranp.datasets.nifti import read_labels, read_volume, write_volume
from ranp.errors import IntegrityError

AFFINE = np.array([[-1.0, 0, 0, 10], [0, 2, 0, -5], [0, 0, 3, 1], [0, 0, 0, 1]])


@pytest.fixture
def volume():
    return np.random.default_rng(0).integers(0, 1000, (9, 10, 11)).astype(np.int16)


@pytest.fixture
def path(tmp_path, volume):
    file = tmp_path / "volume.nii.gz"
    write_volume(file, volume, AFFINE)
    return file


def rewrite(path, change):
    """Unpacks, changes and packs a volume again: the CRC is right, the content is not."""
    raw = bytearray(gzip.decompress(path.read_bytes()))
    raw = change(raw) or raw
    path.write_bytes(gzip.compress(bytes(raw)))


def put(offset, dtype, values):
    def change(raw):
        data = np.array(values, dtype).tobytes()
        raw[offset : offset + len(data)] = data

    return change


def test_round_trip_and_same_bytes(path, tmp_path, volume):
    read = read_volume(path)
    np.testing.assert_array_equal(read.data, volume)
    np.testing.assert_allclose(read.affine, AFFINE)
    write_volume(tmp_path / "again.nii.gz", volume, AFFINE)
    assert (tmp_path / "again.nii.gz").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_agrees_with_nibabel(tmp_path, dtype, suffix, volume):
    path = tmp_path / f"x{suffix}"
    nibabel.save(nibabel.Nifti1Image(volume.astype(dtype), AFFINE), path)
    oracle = nibabel.load(path)
    np.testing.assert_array_equal(read_volume(path).data, np.asanyarray(oracle.dataobj))
    np.testing.assert_allclose(read_volume(path).affine, oracle.affine)


def test_scaled_and_big_endian_agree_with_nibabel(tmp_path, volume):
    path = tmp_path / "x.nii.gz"
    image = nibabel.Nifti1Image(volume.astype(">i2"), AFFINE, nibabel.Nifti1Header(endianness=">"))
    image.header.set_slope_inter(0.5, -3)
    nibabel.save(image, path)
    np.testing.assert_allclose(read_volume(path).data, nibabel.load(path).get_fdata(), rtol=1e-6)


def test_forty_bit_flips_are_forty_caught(path):
    good = path.read_bytes()
    rng = np.random.default_rng(14)
    # The first 10 bytes are gzip's own header: its time stamp has no bearing on the content.
    for position in rng.integers(10, len(good), 40):
        bad = bytearray(good)
        bad[position] ^= 1 << rng.integers(8)
        path.write_bytes(bad)
        with pytest.raises(IntegrityError, match=r"volume\.nii\.gz"):
            read_volume(path)


def test_every_bit_flip_is_caught_or_harmless(tmp_path):
    path = tmp_path / "small.nii.gz"
    labels = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    write_volume(path, labels, AFFINE)
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        path.write_bytes(bad)
        try:
            read = read_volume(path)
        except IntegrityError:
            continue
        np.testing.assert_array_equal(read.data, labels)
        np.testing.assert_allclose(read.affine, AFFINE)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put(40, "<i2", [3, -9, 10, 11]), "dimensions"),
        (put(40, "<i2", [3, 0, 10, 11]), "dimensions"),
        (put(40, "<i2", [0]), "dimensions"),
        (put(40, "<i2", [4, 9, 10, 11, 2]), "dimensions"),
        (put(40, "<i2", [3, 9, 10, 12]), "truncated"),
        (put(40, "<i2", [3, 9, 10, 10]), "more bytes"),
        (put(40, "<i2", [3, 32767, 32767, 32767]), "claims"),
        (put(70, "<i2", [12345]), "header"),
        (put(70, "<i2", [32]), "type"),  # complex
        (put(72, "<i2", [64]), "type"),  # bitpix contradicts the type
        (put(108, "<f4", [1e9]), "begin"),
        (put(108, "<f4", [-4.0]), "begin"),
        (put(112, "<f4", [np.inf]), "scale"),
        (put(344, "S4", [b"abcd"]), "NIfTI"),
        (lambda raw: raw[:200], "whole header"),
        (lambda raw: raw[:-1], "truncated"),
        (lambda raw: raw + b"x", "more bytes"),
    ],
)
def test_lying_headers_are_refused(path, change, reason):
    rewrite(path, change)
    with pytest.raises(IntegrityError, match=reason):
        read_volume(path)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", b"not a volume", b"PK\x03\x04" + bytes(400)])
def test_empty_and_foreign_files_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"volume\.nii\.gz"):
        read_volume(path)


def test_absent_file(tmp_path):
    with pytest.raises(IntegrityError, match="does not exist"):
        read_volume(tmp_path / "no.nii.gz")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_are_refused(tmp_path, value):
    data = np.zeros((3, 3, 3), np.float32)
    data[1, 1, 1] = value
    write_volume(tmp_path / "x.nii.gz", data, AFFINE)
    with pytest.raises(IntegrityError, match="1 voxels that are NaN or infinite"):
        read_volume(tmp_path / "x.nii.gz")


def test_labels_must_be_whole_numbers(tmp_path):
    write_volume(tmp_path / "x.nii.gz", np.full((3, 3, 3), 1.5, np.float32), AFFINE)
    with pytest.raises(IntegrityError, match="whole numbers"):
        read_labels(tmp_path / "x.nii.gz")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read there")
@pytest.mark.parametrize("honest", [True, False])
def test_bomb_is_refused_below_200_megabytes(tmp_path, honest):
    """2 MB that unpack to 2 GB, with a header that says so or one that says 64 MiB."""
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.uint8)
    header.set_data_shape((2048, 1024, 1024) if honest else (64, 1024, 1024))
    header["vox_offset"], header["magic"] = 352, b"n+1"
    packed = gzip.compress(bytes(2**24), compresslevel=9)  # members of 16 MiB, joined: same stream
    bomb = tmp_path / "bomb.nii.gz"
    bomb.write_bytes(gzip.compress(header.binaryblock + bytes(4)) + packed * 128)
    assert bomb.stat().st_size < 3e6
    script = f"""
        from pathlib import Path
        from ranp.datasets.nifti import read_volume
        from ranp.errors import IntegrityError
        try:
            read_volume(Path({str(bomb)!r}))
        except IntegrityError as error:
            print(error)
            # Not ru_maxrss, which begins with what the parent had when it forked.
            status = Path("/proc/self/status").read_text()
            print(status.split("VmHWM:")[1].split()[0])
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    message, peak_kilobytes = run.stdout.splitlines()
    assert ("claims 2048x1024x1024" if honest else "more bytes") in message
    assert int(peak_kilobytes) < 200_000
