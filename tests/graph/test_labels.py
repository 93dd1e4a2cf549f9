"""The union-find on arrays against a plain one, and the pairing of dimensions by reshape."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ranp.graph.labels import LabelSpace
from ranp.graph.rules.reshaping import factor_groups

_PAIRS = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=30)


def partition(count: int, pairs: list[tuple[int, int]]) -> set[frozenset[int]]:
    parts = [{i} for i in range(count)]
    for a, b in pairs:
        left, right = (next(p for p in parts if x in p) for x in (a, b))
        if left is not right:
            parts.remove(right)
            left |= right
    return {frozenset(part) for part in parts}


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(_PAIRS, max_size=4), st.sets(st.integers(0, 19)), st.sets(st.integers(0, 19)))
def test_classes_pins_and_neurons(batches, pinned: set[int], neurons: set[int]) -> None:
    space = LabelSpace()
    labels = space.fresh(20)
    space.pin(np.array(sorted(pinned), np.int64), "first")
    space.pin(np.array(sorted(pinned), np.int64), "second")
    space.mark_neurons(np.array(sorted(neurons), np.int64))
    for pairs in batches:
        a, b = np.array(pairs, np.int64).reshape(-1, 2).T
        space.unite(a, b)
    expected = partition(20, [pair for pairs in batches for pair in pairs])
    roots = space.find(labels)
    assert {frozenset(np.flatnonzero(roots == r).tolist()) for r in set(roots.tolist())} == expected
    for part in expected:
        label = min(part)
        free = bool(part & neurons) and not part & pinned
        assert bool(space.prunable(np.array([label]))[0]) == free
        reason = space.pin_reasons().get(int(roots[label]))
        assert reason == ("first" if part & pinned else None)


def test_uniting_broadcasts() -> None:
    space = LabelSpace()
    grid = space.fresh(6).reshape(3, 2)
    space.unite(grid[1:], grid[:1])
    assert space.find(grid).tolist() == [[0, 1]] * 3


_SIZES = st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=5)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(_SIZES, st.data())
def test_reshape_pairs_dimensions_that_hold_the_same_elements(old: list[int], data) -> None:
    factors = [f for size in old for f in {4: (2, 2), 6: (3, 2)}.get(size, (size,))]
    new = []
    while factors:  # joins random runs of the factors
        count = data.draw(st.integers(1, len(factors)))
        new.append(math.prod(factors[:count]))
        factors = factors[count:]
    groups = list(factor_groups(old, new))
    assert [i for left, _ in groups for i in left] == list(range(len(old)))
    assert [j for _, right in groups for j in right] == list(range(len(new)))
    for left, right in groups:
        assert math.prod(old[i] for i in left) == math.prod(new[j] for j in right)
