"""Views: the same elements in the same order under another shape, or the same shape turned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ranp.graph.labels import Dim, Dims, LabelArray, replace_dim, unlabelled
from ranp.graph.operation import Operation, carrier, rule
from ranp.graph.propagation import Propagator


@rule("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy")
@rule("squeeze", "squeeze_", "unsqueeze", "unsqueeze_", "flatten", "unflatten")
@carrier
def reshape(p: Propagator, op: Operation) -> Dims:
    """Repeat labels where dimensions merge, split them where one dimension becomes several."""
    source = op["self"]
    dims = p.dims(source)
    if source.numel() == 0:
        return unlabelled(op.output.shape)
    result: list[Dim] = []
    for old, new in factor_groups(source.shape, op.output.shape):
        grid = _merged(p, [(source.shape[i], dims[i]) for i in old])
        sizes = [op.output.shape[i] for i in new]
        result += [None] * len(sizes) if grid is None else _split(p, grid.reshape(sizes))
    return tuple(result)


def factor_groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Pair runs of old and new dimensions that hold the same elements, as short as possible."""
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and old[i] == 1:
            yield [i], []
            i += 1
        elif j < len(new) and new[j] == 1:
            yield [], [j]
            j += 1
        else:
            left, right, size_left, size_right = [i], [j], old[i], new[j]
            while size_left != size_right:
                if size_left < size_right:
                    left.append(left[-1] + 1)
                    size_left *= old[left[-1]]
                else:
                    right.append(right[-1] + 1)
                    size_right *= new[right[-1]]
            yield left, right
            i, j = left[-1] + 1, right[-1] + 1


def _merged(p: Propagator, parts: Sequence[tuple[int, Dim]]) -> LabelArray | None:
    """Return the labels of several dimensions as one, repeated along the unlabelled ones."""
    labelled = [i for i, (_, dim) in enumerate(parts) if dim is not None]
    if not labelled:
        return None
    if len(labelled) > 1:  # a slot would belong to two classes at once
        for i in labelled:
            p.pin(parts[i][1], "it is merged with other channels")
        return None
    (at,) = labelled
    before = math.prod(size for size, _ in parts[:at])
    after = math.prod(size for size, _ in parts[at + 1 :])
    labels = parts[at][1]
    assert labels is not None
    return np.tile(np.repeat(labels, after), before)


def _split(p: Propagator, grid: LabelArray) -> list[Dim]:
    """Give the labels of a grid to one of its axes, uniting along the others.

    What is left after pruning must be a rectangle, so all rows of the grid must lose the same
    columns. Which axis shrinks is for the code to say: the longest is tried first.
    """
    roots = p.space.find(grid)
    varying = [axis for axis in range(grid.ndim) if (roots != np.take(roots, [0], axis=axis)).any()]
    if len(varying) > 1:
        axis = p.choose(sorted(varying, key=lambda axis: (-grid.shape[axis], -axis)))
        if axis is None:
            p.pin(grid.ravel(), "it is split by fixed numbers")
            return [None] * grid.ndim
        p.lay(grid.ravel())
        varying = [axis]
    if not varying:  # a single class along all axes: only whole can it go, and that is never
        p.pin(grid.ravel(), "all its channels are tied to one another")
        return [None] * grid.ndim
    rows = np.moveaxis(grid, varying[0], -1).reshape(-1, grid.shape[varying[0]])
    p.space.unite(rows[1:], rows[:1])
    return [rows[0] if axis == varying[0] else None for axis in range(grid.ndim)]


@rule("permute", "permute_copy")
@carrier
def permute(p: Propagator, op: Operation) -> Dims:
    """Labels move with their dimension."""
    dims = p.dims(op["self"])
    return tuple(dims[i] for i in op["dims"])


@rule("transpose", "transpose_", "swapaxes")
@carrier
def transpose(p: Propagator, op: Operation) -> Dims:
    """Two dimensions change places."""
    dims = list(p.dims(op["self"]))
    if dims:
        a, b = op["dim0"], op["dim1"]
        dims[a], dims[b] = dims[b], dims[a]
    return tuple(dims)


@rule("t", "t_", "numpy_T", "mT", "matrix_H")
@carrier
def transpose_matrix(p: Propagator, op: Operation) -> Dims:
    """The last two dimensions change places."""
    dims = p.dims(op["self"])
    return dims if len(dims) < 2 else (*dims[:-2], dims[-1], dims[-2])


@rule("expand", "expand_copy")
@carrier
def expand(p: Propagator, op: Operation) -> Dims:
    """Stretched dimensions hold the same thing in every slot: fresh labels, free to unite."""
    source, shape = op["self"], op.output.shape
    dims = p.dims(source)
    new = len(shape) - source.dim()
    return tuple(
        _alike(p, size) if i < new or source.shape[i - new] != size else dims[i - new]
        for i, size in enumerate(shape)
    )


@rule("repeat")
@carrier
def repeat(p: Propagator, op: Operation) -> Dims:
    """Each dimension is laid end to end several times."""
    source, repeats = op["self"], op["repeats"]
    new = len(repeats) - source.dim()
    result: list[Dim] = []
    for i, count in enumerate(repeats):
        size = 1 if i < new else source.shape[i - new]
        dim = None if i < new else p.dims(source)[i - new]
        if dim is None:
            result.append(_alike(p, count) if size == 1 else None)
        else:
            result.append(np.tile(dim, count))
    return tuple(result)


def _alike(p: Propagator, size: int) -> Dim:
    return p.space.fresh(size) if size > 1 else None


@rule("pixel_shuffle")
def pixel_shuffle(p: Propagator, op: Operation) -> Dims:
    """R x r channels become one: they go together."""
    dims, factor = p.dims(op["self"]), op["upscale_factor"]
    channels = dims[-3]
    if channels is not None:
        grid = channels.reshape(-1, factor * factor)
        p.space.unite(grid[:, 1:], grid[:, :1])
        channels = grid[:, 0] if len(grid) > 1 else None
    return (*dims[:-3], channels, None, None)


@rule("pixel_unshuffle")
def pixel_unshuffle(p: Propagator, op: Operation) -> Dims:
    """One channel becomes r x r."""
    dims, factor = p.dims(op["self"]), op["downscale_factor"]
    channels = dims[-3]
    repeated = None if channels is None else np.repeat(channels, factor * factor)
    return (*dims[:-3], repeated, None, None)


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(p: Propagator, op: Operation) -> Dims:
    """Groups are interleaved: each must lose the same channels."""
    dims, groups = p.dims(op["self"]), op["groups"]
    channels = dims[1]
    if channels is not None:
        p.space.unite_rows(channels, groups)
        channels = channels.reshape(groups, -1).T.ravel()
    return replace_dim(dims, 1, channels)
