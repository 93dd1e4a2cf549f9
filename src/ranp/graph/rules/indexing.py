"""Operations that pick, join or move slots by their number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ranp.graph.labels import Dim, Dims, LabelArray, replace_dim, unlabelled
from ranp.graph.operation import Operation, picker, rule
from ranp.graph.propagation import Propagator
from ranp.graph.rules.elementwise import broadcast, unite_dims


def _along(dims: Dims, index: int, pick: Callable[[LabelArray], LabelArray]) -> Dims:
    labels = dims[index]
    return dims if labels is None else replace_dim(dims, index, pick(labels))


def _settle_pieces(p: Propagator, labels: Dim, piece: int, first: str) -> None:
    """Decide how the code will cut a smaller dimension into pieces.

    Either each piece keeps its own slots (their numbers are taken from other tensors), or the
    pieces stay of equal size (`chunk`), so that all must lose the same slots; or else the numbers
    are fixed.
    """
    if labels is None:
        return
    readings = ["own slots", "equal pieces"]
    if piece == 0 or len(labels) % piece or piece == len(labels):
        readings = ["own slots"]
    reading = p.choose(sorted(readings, key=lambda reading: reading != first))
    if reading is None:
        p.pin(labels, "it is cut by fixed numbers")
    elif reading == "equal pieces":
        p.space.unite_rows(labels, len(labels) // piece)


@picker("slice")
def _sliced(dims: Dims, op: Operation) -> Dims:
    run = slice(op["start"], op["end"], op["step"])
    return _along(dims, op["dim"], lambda labels: labels[run])


@rule("slice")
def slice_(p: Propagator, op: Operation) -> Dims:
    """A run of slots."""
    source, dim = op["self"], op["dim"]
    dims, size = p.dims(source), source.shape[dim]
    start, stop, step = slice(op["start"], op["end"], op["step"]).indices(size)
    piece = max(stop - start, 0)
    if step > 1:
        p.pin(dims[dim], "it is picked by number")
    elif 0 < piece < size:
        _settle_pieces(p, dims[dim], piece if start % piece == 0 else 0, "own slots")
    return _sliced(dims, op)


@rule("select", "unbind")
def select(p: Propagator, op: Operation) -> Dims:
    """A single slot; with `unbind`, every slot becomes a tensor of its own."""
    dims = p.dims(op["self"])
    index = op["dim"] % len(dims)
    p.pin(dims[index], "it is picked by number")
    return (*dims[:index], *dims[index + 1 :])


_SPLITS = ("split", "split_with_sizes", "chunk", "unsafe_chunk", "unsafe_split")


@picker(*_SPLITS)
def _pieces(dims: Dims, op: Operation) -> list[Dims]:
    dim = op["dim"]
    labels = dims[dim]
    if labels is None:
        return [dims] * len(op.outputs)
    ends = np.cumsum([tensor.shape[dim] for tensor in op.outputs])
    return [replace_dim(dims, dim, piece) for piece in np.split(labels, ends[:-1])]


@rule(*_SPLITS)
def split(p: Propagator, op: Operation) -> list[Dims]:
    """Several runs of slots."""
    dims, dim = p.dims(op["self"]), op["dim"]
    sizes = [tensor.shape[dim] for tensor in op.outputs]
    likely = "own slots" if op.name.endswith("with_sizes") else "equal pieces"
    _settle_pieces(p, dims[dim], sizes[0] if len(set(sizes)) == 1 else 0, likely)
    return _pieces(dims, op)


@rule("glu")
def glu(p: Propagator, op: Operation) -> Dims:
    """The first half is gated by the second: they lose the same slots."""
    dims, dim = p.dims(op["self"]), op["dim"]
    labels = dims[dim]
    if labels is not None:
        p.space.unite_rows(labels, 2)
    return _along(dims, dim, lambda labels: labels[: len(labels) // 2])


@rule("cat", "concat", "concatenate")
def cat(p: Propagator, op: Operation) -> Dims:
    """Slots end to end; all other dimensions belong together."""
    # Old code may concatenate with an empty one-dimensional tensor, which ATen passes over.
    tensors = [t for t in op["tensors"] if t.dim() == op.output.dim()]
    dim = op["dim"] % op.output.dim()
    result: list[Dim] = []
    for i in range(op.output.dim()):
        parts = [p.dims(t)[i] for t in tensors]
        if i != dim:
            result.append(unite_dims(p, parts, "it meets a tensor of fixed size"))
        elif all(part is None for part in parts):
            result.append(None)
        else:
            reason = "it is concatenated with channels of which there is nothing to remove"
            pairs = zip(tensors, parts, strict=True)
            result.append(
                np.concatenate([p.space.concrete(part, t.shape[i], reason) for t, part in pairs])
            )
    return tuple(result)


@rule("stack")
def stack(p: Propagator, op: Operation) -> Dims:
    """A new dimension; all others belong together."""
    dims = list(broadcast(p, op["tensors"], op["tensors"][0].shape))
    dims.insert(op["dim"] % op.output.dim(), None)
    return tuple(dims)


@rule("flip")
def flip(p: Propagator, op: Operation) -> Dims:
    """Slots in reverse order."""
    dims = p.dims(op["self"])
    for dim in op["dims"]:
        dims = _along(dims, dim, lambda labels: labels[::-1])
    return dims


@rule("roll")
def roll(p: Propagator, op: Operation) -> Dims:
    """Slots moved round by a number."""
    dims = p.dims(op["self"])
    for dim in op["dims"] or range(len(dims)):
        p.pin(dims[dim], "it is rolled by a number")
    return dims


@rule("index_select", "gather", "take_along_dim", "scatter", "scatter_", "index_add", "index_add_")
def pick_along(p: Propagator, op: Operation) -> Dims:
    """Slots of one dimension picked by computed numbers: that dimension stays whole."""
    source, dim = op["self"], op["dim"]
    dims = p.dims(source)
    p.pin(dims[dim], "it is picked by index")
    p.pin_tensors(op.inputs[1:], "it is an index or picked by one")
    kept = tuple(
        labels if i != dim % len(dims) and size == op.output.shape[i] else None
        for i, (labels, size) in enumerate(zip(dims, source.shape, strict=True))
    )
    return kept if len(kept) == op.output.dim() else unlabelled(op.output.shape)


@rule("index", "_unsafe_index")
def index(p: Propagator, op: Operation) -> Dims:
    """Advanced indexing: indexed dimensions stay whole, the others keep their labels."""
    dims, indices = p.dims(op["self"]), op["indices"]
    indexed = [i for i, number in enumerate(indices) if number is not None]
    contiguous = indexed == list(range(indexed[0], indexed[-1] + 1))
    if not contiguous or any(indices[i].dtype == torch.bool for i in indexed):
        p.pin_tensors(op.inputs, "it is picked by index")
        return unlabelled(op.output.shape)
    for i in indexed:
        p.pin(dims[i], "it is picked by index")
    picked = torch.broadcast_shapes(*(indices[i].shape for i in indexed))
    return (*dims[: indexed[0]], *unlabelled(picked), *dims[indexed[-1] + 1 :])


@rule("index_put", "index_put_", "_index_put_impl_", "masked_scatter", "masked_scatter_")
def index_put(p: Propagator, op: Operation) -> Dims:
    """Written by number: nothing of what is written to, or with, can go."""
    p.pin_tensors(op.inputs, "it is written by index")
    return p.dims(op["self"])


@rule("embedding")
def embedding(p: Propagator, op: Operation) -> Dims:
    """Rows of a table by number: the table's columns are the channels."""
    rows, columns = p.dims(op["weight"])
    p.pin(rows, "it is picked by index")
    return (*unlabelled(op["indices"].shape), columns)


@rule("constant_pad_nd")
def constant_pad(p: Propagator, op: Operation) -> Dims:
    """Pads given for the last dimension first. Padded slots are constant.

    They can go where the code pads up to a width it asks for; by a fixed number they cannot.
    """
    dims, pads = list(p.dims(op["self"])), op["pad"]
    for pair in range(len(pads) // 2):
        i = len(dims) - 1 - pair
        before, after = pads[2 * pair : 2 * pair + 2]
        labels = dims[i]
        if labels is None or (before, after) == (0, 0):
            continue
        if before < 0 or after < 0:
            p.pin(labels, "it is cropped by numbers")
        front, back = p.space.fresh(max(before, 0)), p.space.fresh(max(after, 0))
        if p.choose(["free"]) is None:
            for padding in (front, back):
                p.pin(padding, "it is padding of a fixed number")
        whole = np.concatenate([front, labels, back])
        dims[i] = whole[max(-before, 0) : len(whole) - max(-after, 0)]
    return tuple(dims)


@rule("repeat_interleave")
def repeat_interleave(p: Propagator, op: Operation) -> Dims:
    """Each slot several times in a row."""
    dims, dim, count = p.dims(op["self"]), op.get("dim"), op.get("repeats")
    if dim is None or not isinstance(count, int):
        p.pin_tensors([op["self"]], "it is repeated by a tensor of numbers")
        return unlabelled(op.output.shape)
    return _along(dims, dim, lambda labels: np.repeat(labels, count))
