from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranp.datasets.frames import (
    MEAN,
    Window,
    centre_square,
    centre_start,
    crop_and_resize,
    multi_scale_corner,
    random_start,
    repeat_frames,
    to_input,
)


@given(total=st.integers(1, 200), seed=st.integers(0, 1000))
def test_random_windows_lie_within_the_clip(total, seed):
    start = random_start(total, 16, np.random.default_rng(seed))
    assert 0 <= start <= max(total - 16, 0)


def test_random_windows_reach_both_ends():
    rng = np.random.default_rng(0)
    assert {random_start(18, 16, rng) for _ in range(100)} == {0, 1, 2}


def test_centre_window():
    assert centre_start(164, 16) == 74  # 74 before, 74 after
    assert centre_start(5, 16) == 0


@given(seed=st.integers(0, 10_000))
def test_corner_crops_have_the_five_scales_and_lie_in_corners_or_centre(seed):
    window = multi_scale_corner(240, 320, np.random.default_rng(seed))
    assert window.edge in [240, 201, 169, 142, 120]  # 240 / 2 ** (k / 4)
    rest = (240 - window.edge, 320 - window.edge)
    corners = {(0, 0), (0, rest[1]), (rest[0], 0), rest}
    assert (window.top, window.left) in corners | {(round(rest[0] / 2), round(rest[1] / 2))}


def test_all_scales_positions_and_both_flips_occur():
    rng = np.random.default_rng(0)
    windows = [multi_scale_corner(240, 320, rng) for _ in range(500)]
    assert len({w.edge for w in windows}) == 5
    assert len({(w.top, w.left) for w in windows if w.edge == 120}) == 5
    assert {w.mirrored for w in windows} == {True, False}


@pytest.mark.parametrize(("edge", "size"), [(60, 112), (112, 112), (200, 112), (240, 112)])
def test_resizing_agrees_with_torch(edge, size):
    frames = np.random.default_rng(0).integers(0, 256, (2, 240, 320, 3)).astype(np.uint8)
    window = Window(0, 40, edge)
    square = torch.from_numpy(frames[:, :edge, 40 : 40 + edge]).permute(0, 3, 1, 2).float()
    oracle = torch.nn.functional.interpolate(
        square, (size, size), mode="bilinear", antialias=True, align_corners=False
    )
    ours = crop_and_resize(frames, window, size).astype(float)
    assert np.abs(ours - oracle.permute(0, 2, 3, 1).numpy()).max() <= 0.51  # ours is rounded


def test_mirrored_is_the_mirror_image():
    frames = np.random.default_rng(0).integers(0, 256, (2, 32, 40, 3)).astype(np.uint8)
    plain = crop_and_resize(frames, centre_square(32, 40), 32)
    np.testing.assert_array_equal(plain, frames[:, :, 4:36])
    np.testing.assert_array_equal(
        crop_and_resize(frames, Window(0, 4, 32, mirrored=True), 32), plain[:, :, ::-1]
    )


def test_short_clips_are_repeated():
    frames = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1)
    assert repeat_frames(frames, 12).ravel().tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_input_is_channels_first_minus_the_mean():
    frames = np.zeros((16, 4, 4, 3), np.uint8)
    frames[3, 1, 2] = (255, 0, 0)
    x = to_input(frames)
    assert x.shape == (3, 16, 4, 4)
    assert x.dtype == np.float32
    np.testing.assert_allclose(x[:, 3, 1, 2], (np.array([255, 0, 0]) - MEAN) / 255, rtol=1e-6)
