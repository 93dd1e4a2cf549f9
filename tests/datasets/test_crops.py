from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranp.datasets.crops import (
    centre_corner,
    crop_or_pad,
    normalise,
    predict_whole,
    random_corner,
)
from ranp.datasets.splits import in_split, stratified_folds
from ranp.errors import UsageError


@pytest.mark.filterwarnings("ignore")  # MONAI's own imports warn
def test_normalisation_agrees_with_monai():
    from monai.transforms import NormalizeIntensity

    image = np.random.default_rng(0).gamma(2, 300, (20, 21, 22)).astype(np.float32)
    image[:5] = 0
    brain = image != 0
    low, high = np.percentile(image[brain], [0.2, 99.8])
    clipped = np.where(brain, np.clip(image, low, high), 0).astype(np.float32)
    oracle = NormalizeIntensity(nonzero=True)(torch.from_numpy(clipped)).numpy()
    np.testing.assert_allclose(normalise(image, brain), oracle, atol=1e-4)


def test_normalisation_forgets_gain_and_offset():
    image = np.random.default_rng(0).normal(100, 10, (8, 8, 8))
    mask = np.ones(image.shape, bool)
    np.testing.assert_allclose(
        normalise(image, mask), normalise(image * 1e4 + 5e5, mask), atol=1e-3
    )


def test_a_constant_or_empty_volume_becomes_zero():
    assert not normalise(np.full((4, 4, 4), 7), np.ones((4, 4, 4), bool)).any()
    assert not normalise(np.zeros((4, 4, 4)), np.zeros((4, 4, 4), bool)).any()


@given(
    shape=st.tuples(*[st.integers(3, 20)] * 3),
    size=st.integers(4, 16),
    seed=st.integers(0, 10_000),
)
def test_random_crops_hold_a_label_and_stay_inside(shape, size, seed):
    rng = np.random.default_rng(seed)
    labels = np.zeros(shape, np.uint8)
    labels[tuple(rng.integers(0, shape))] = 4
    corner = random_corner(labels, size, rng)
    assert (crop_or_pad(labels, corner, size) == 4).sum() == 1
    for start, length in zip(corner, shape, strict=True):
        if length > size:
            assert 0 <= start <= length - size
        else:
            assert start == (length - size) // 2


def test_random_crops_reach_everywhere():
    labels = np.zeros((10, 10, 10), np.uint8)
    labels[5, 5, 5] = 1
    rng = np.random.default_rng(0)
    starts = {random_corner(labels, 4, rng)[0] for _ in range(200)}
    assert starts == {2, 3, 4, 5}


def test_a_volume_without_labels_is_cropped_anywhere():
    rng = np.random.default_rng(0)
    corners = [random_corner(np.zeros((10, 10, 10)), 4, rng) for _ in range(300)]
    assert {corner[2] for corner in corners} == set(range(7))


@given(shape=st.tuples(*[st.integers(1, 12)] * 3), size=st.integers(1, 12))
def test_centred_cube_agrees_with_padding_and_slicing(shape, size):
    array = np.arange(np.prod(shape)).reshape(1, *shape) + 1
    cube = crop_or_pad(array, centre_corner(shape, size), size)
    assert cube.shape == (1, size, size, size)
    padded = np.pad(array, ((0, 0), *[(size, size)] * 3))
    slices = [slice((n - size) // 2 + size, (n - size) // 2 + 2 * size) for n in shape]
    np.testing.assert_array_equal(cube, padded[:, slices[0], slices[1], slices[2]])


@pytest.mark.filterwarnings("ignore")
def test_sliding_windows_blend_to_the_whole():
    x = torch.randn(1, 2, 20, 24, 18, generator=torch.Generator().manual_seed(0))
    shapes = []

    def network(window):
        shapes.append(window.shape[2:])
        return torch.cat([window, 3 * window[:, :1]], 1)

    y = predict_whole(network, x, window=16)
    torch.testing.assert_close(y, network(x), atol=1e-4, rtol=1e-4)
    assert set(shapes[:-1]) == {(16, 16, 16)}


def test_folds_are_stratified_as_the_paper_s():
    strata = {f"case{i:03d}": "HGG" if i < 210 else "LGG" for i in range(285)}
    folds = stratified_folds(strata)
    for fold in range(5):
        members = [case for case, f in folds.items() if f == fold]
        assert len(members) == 57
        assert sum(strata[case] == "LGG" for case in members) == 15


def test_folds_do_not_depend_on_the_order_and_are_fixed():
    strata = dict.fromkeys((f"h{i}" for i in range(10)), "all")
    assert stratified_folds(strata) == stratified_folds(dict(reversed(strata.items())))
    # Written down: 'fold 0' must stay the same set of cases for ever.
    assert sorted(c for c, f in stratified_folds(strata).items() if f == 0) == ["h1", "h5"]


@given(counts=st.lists(st.integers(1, 23), min_size=1, max_size=4))
def test_fold_sizes_differ_by_one_at_most(counts):
    strata = {f"{s}-{i}": str(s) for s, count in enumerate(counts) for i in range(count)}
    sizes = np.bincount(list(stratified_folds(strata).values()), minlength=5)
    assert sizes.sum() == sum(counts)
    assert sizes.max() - sizes.min() <= 1


def test_splits_partition_the_usable_cases():
    for fold in range(5):
        assert [in_split(f, "validation", fold) for f in (0, 1, 2, 3, 4)].count(True) == 1
        for case_fold in range(5):
            assert in_split(case_fold, "train", fold) != in_split(case_fold, "validation", fold)
        assert not in_split(None, "train", fold)
    with pytest.raises(UsageError, match="'test'"):
        in_split(0, "test", 0)
    with pytest.raises(UsageError, match="fold must be 0 to 4, got 5"):
        in_split(0, "train", 5)
