from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranp.datasets.voxels import EMPTY, voxelize
from ranp.errors import IntegrityError, UsageError


def voxelize_by_loop(points, labels, size):
    """The definition, point by point: what `voxelize` must agree with."""
    radius = max(float(np.linalg.norm(p)) for p in points)
    votes: dict[tuple[int, ...], Counter[int]] = {}
    for point, label in zip(points, labels, strict=True):
        cell = tuple(int(np.floor(c / radius * (size - 1) / 2 + size / 2)) for c in point)
        votes.setdefault(cell, Counter())[int(label)] += 1
    grid = np.full((size,) * 3, EMPTY)
    for cell, counter in votes.items():
        most = max(counter.values())
        grid[cell] = min(label for label, count in counter.items() if count == most)
    return grid


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 400),
    size=st.sampled_from([8, 9, 32, 64, 128]),
    spread=st.floats(0.01, 100),
)
def test_agrees_with_the_loop_over_points(seed, count, size, spread):
    rng = np.random.default_rng(seed)
    # Few distinct places and labels: many points share a voxel, ties are common.
    points = rng.integers(-4, 5, (count, 3)) * spread + rng.normal(0, 1e-3, (count, 3))
    labels = rng.integers(0, 4, count)
    voxels = voxelize(points, labels, size)
    np.testing.assert_array_equal(voxels.label_grid(), voxelize_by_loop(points, labels, size))
    np.testing.assert_array_equal(voxels.occupancy()[0] == 1, voxels.label_grid() != EMPTY)


def test_outermost_points_stay_within_the_grid_and_reach_its_faces():
    axes = np.concatenate([np.eye(3), -np.eye(3)])
    for size in (32, 64, 128):
        cells = np.argwhere(voxelize(axes, np.zeros(6, int), size).label_grid() != EMPTY)
        middle = size // 2
        expected = {
            tuple(edge if a == axis else middle for a in range(3))
            for axis in range(3)
            for edge in (0, size - 1)
        }
        assert {tuple(cell) for cell in cells.tolist()} == expected


def test_the_largest_grid_and_the_largest_label_fit_the_packed_integers():
    size = 256
    voxels = voxelize(np.array([[1.0, 0, 0], [-1.0, 0, 0]]), np.array([254, 0]), size)
    middle = size // 2 * (size + 1)
    assert voxels.positions.tolist() == [middle, (size - 1) * size**2 + middle]
    assert voxels.labels.tolist() == [0, 254]


def test_points_are_left_as_they_are():
    points = np.random.default_rng(0).normal(size=(50, 3))
    for layout in (points, np.asfortranarray(points)):
        before = layout.copy()
        voxelize(layout, np.zeros(50, int), 16)
        np.testing.assert_array_equal(layout, before)


def test_points_are_not_centred():
    one_sided = np.array([[1.0, 0, 0], [0.9, 0, 0]])
    cells = np.argwhere(voxelize(one_sided, np.zeros(2, int), 32).label_grid() != EMPTY)
    assert (cells[:, 0] > 16).all()


def test_majority_wins_and_ties_go_to_the_smallest_label():
    place, far = [0.5, 0.5, 0.5], [1.0, 1.0, 1.0]
    points = np.array([place] * 5 + [far] * 4)
    grid = voxelize(points, np.array([7, 3, 7, 3, 7, 9, 2, 2, 9]), 16).label_grid()
    assert sorted(grid[grid != EMPTY].tolist()) == [2, 7]


def test_refuses_what_has_no_voxels():
    with pytest.raises(IntegrityError, match="origin"):
        voxelize(np.zeros((3, 3)), np.zeros(3, int), 32)
    with pytest.raises(IntegrityError, match="2 points but 3 labels"):
        voxelize(np.ones((2, 3)), np.zeros(3, int), 32)
    with pytest.raises(IntegrityError, match="finite"):
        voxelize(np.array([[np.nan, 0, 0]]), np.zeros(1, int), 32)
    with pytest.raises(UsageError, match="voxel grid size must be 8 to 256, got 4"):
        voxelize(np.ones((2, 3)), np.zeros(2, int), 4)
