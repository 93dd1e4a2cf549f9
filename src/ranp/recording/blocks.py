"""Layers grouped into blocks, so that the page of a network of any depth can be read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

MOST_BLOCKS = 128


def group_layers(names: Sequence[str], most: int = MOST_BLOCKS) -> list[tuple[str, int]]:
    """Group consecutive layers by the deepest modules that are few enough.

    Returns:
        Name and number of layers of each block; no more than `most` blocks.
    """
    if len(names) <= most:
        return [(name, 1) for name in names]
    paths = [name.split(".") for name in names]
    depths = range(max(map(len, paths)) - 1, -1, -1)
    by_depth = (
        [len(list(run)) for _, run in groupby(p[:depth] for p in paths)] for depth in depths
    )
    runs = next(sizes for sizes in by_depth if len(sizes) <= most)
    largest = -(-len(names) // (most - len(runs) + 1))
    blocks, start = [], 0
    for size in runs:
        pieces = -(-size // largest)
        ends = [start + size * piece // pieces for piece in range(pieces + 1)]
        for first, end in pairwise(ends):
            alone = end - first == 1
            name = names[first] if alone else f"{names[first]} … {names[end - 1]}"
            blocks.append((name, end - first))
        start += size
    return blocks
