from __future__ import annotations

import contextlib

import numpy as np
import pytest

from ranp.datasets.synthetic.motion import draw_clip, render
from ranp.datasets.video import count_frames, probe, read_frames, write_video
from ranp.errors import IntegrityError, RanpError, UsageError

FRAMES = 40


@pytest.fixture(scope="module")
def frames():
    return render(draw_clip(10, 0, 2), FRAMES, 64, 96)


@pytest.fixture
def clip(tmp_path, frames):
    path = tmp_path / "clip.avi"
    write_video(path, frames)
    return path


def test_round_trip(clip, frames):
    info = probe(clip)
    assert (info.frames, info.height, info.width) == (FRAMES, 64, 96)
    assert count_frames(clip) == FRAMES
    decoded = read_frames(clip, 0, FRAMES)
    error = np.mean((decoded.astype(float) - frames) ** 2)
    assert 10 * np.log10(255**2 / error) > 25  # the codec is lossy: PSNR in dB


def test_same_frames_same_bytes(clip, tmp_path, frames):
    write_video(tmp_path / "again.avi", frames)
    assert (tmp_path / "again.avi").read_bytes() == clip.read_bytes()


@pytest.mark.parametrize("start", [0, 1, 11, 12, 13, 24])
def test_seeking_gives_the_frames_that_reading_from_the_beginning_gives(clip, start):
    whole = read_frames(clip, 0, FRAMES)
    np.testing.assert_array_equal(read_frames(clip, start, 16), whole[start : start + 16])


def test_frames_that_do_not_exist(clip):
    with pytest.raises(UsageError, match="40 frames"):
        read_frames(clip, 30, 16)


def mutations(data: bytes, count: int):
    """Damage of four kinds: flipped bits anywhere, truncation, zeroed runs, a damaged header."""
    rng = np.random.default_rng(18)
    for number in range(count):
        bad = bytearray(data)
        if number % 4 == 0:
            for position in rng.integers(0, len(bad), rng.choice([1, 10, 100])):
                bad[position] ^= 1 << rng.integers(8)
        elif number % 4 == 1:
            del bad[rng.integers(len(bad)) :]
        elif number % 4 == 2:
            start = int(rng.integers(len(bad)))
            stop = min(start + int(rng.integers(1, 2000)), len(bad))
            bad[start:stop] = bytes(stop - start)
        else:
            for position in rng.integers(0, 400, 3):
                bad[position] ^= 1 << rng.integers(8)
        yield bytes(bad)


@pytest.mark.parametrize("number", [80, pytest.param(300, marks=pytest.mark.slow)])
def test_mutations_no_crash_and_no_silent_wrong_count(clip, tmp_path, number):
    damaged = tmp_path / "damaged.avi"
    refused = 0
    for data in mutations(clip.read_bytes(), number):
        damaged.write_bytes(data)
        try:
            assert count_frames(damaged) == FRAMES
        except IntegrityError as error:
            refused += 1
            assert "damaged.avi" in str(error)
        with contextlib.suppress(RanpError):
            assert read_frames(damaged, 3, 16).shape[0] == 16
    assert refused > number / 2  # what is not refused has the right count


@pytest.mark.parametrize("content", [b"", b"no video", b"RIFF\x00\x00\x00\x00AVI "])
def test_empty_and_foreign_files(tmp_path, content):
    path = tmp_path / "x.avi"
    path.write_bytes(content)
    for read in (probe, count_frames):
        with pytest.raises(IntegrityError, match=r"x\.avi"):
            read(path)


def test_absent_file(tmp_path):
    with pytest.raises(IntegrityError, match="does not exist"):
        probe(tmp_path / "x.avi")
