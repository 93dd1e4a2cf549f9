"""Labels: one number per slot of a tensor's dimension, united when slots must live or die together.

A tensor is described by its *dims*: for each dimension either an array of labels, one per slot, or
`None` where no slot is ever removed (batch, space).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LabelArray = NDArray[np.int64]
Dim = LabelArray | None
Dims = tuple[Dim, ...]


class LabelSpace:
    """A union-find over labels, on whole arrays at once.

    Pins (the slot must stay) and neurons (the slot is a layer's output) are marks on labels; a
    class has a mark when one of its labels has it.
    """

    def __init__(self) -> None:
        self._parent: LabelArray = np.empty(0, np.int64)
        self._size = 0
        self._neuron = np.empty(0, bool)
        # Reasons are few and repeat: each label holds the number of its reason, 0 = not pinned.
        self._reason_of: LabelArray = np.empty(0, np.int64)
        self._reasons: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return self._size

    def fresh(self, count: int) -> LabelArray:
        """Return new labels, each a class of its own."""
        start, self._size = self._size, self._size + count
        if self._size > len(self._parent):
            capacity = max(2 * len(self._parent), self._size, 1024)
            self._parent = np.concatenate(
                [self._parent, np.arange(len(self._parent), capacity, dtype=np.int64)]
            )
            grown = capacity - len(self._neuron)
            self._neuron = np.concatenate([self._neuron, np.zeros(grown, bool)])
            self._reason_of = np.concatenate([self._reason_of, np.zeros(grown, np.int64)])
        return np.arange(start, self._size, dtype=np.int64)

    def concrete(self, dim: Dim, size: int, reason: str) -> LabelArray:
        """Return the labels of a dimension; where it has none, new ones that are pinned."""
        if dim is None:
            dim = self.fresh(size)
            self.pin(dim, reason)
        return dim

    def find(self, labels: LabelArray) -> LabelArray:
        """Return the representative of each label's class."""
        root = self._parent[labels]
        while True:
            above = self._parent[root]
            if np.array_equal(above, root):
                break
            root = above
        self._parent[labels] = root
        return root

    def unite(self, a: LabelArray, b: LabelArray) -> None:
        """Make one class of a[i] and b[i], for every i (with broadcasting)."""
        a, b = np.broadcast_arrays(a, b)
        a, b = a.ravel(), b.ravel()
        while True:
            root_a, root_b = self.find(a), self.find(b)
            differ = root_a != root_b
            if not differ.any():
                return
            low = np.minimum(root_a[differ], root_b[differ])
            high = np.maximum(root_a[differ], root_b[differ])
            # A root may be asked to hang under several others at once; the smallest wins and the
            # next round settles the rest.
            np.minimum.at(self._parent, high, low)

    def unite_rows(self, labels: LabelArray, rows: int) -> None:
        """Unite slot i of every row, where the labels are `rows` rows of equal length."""
        grid = labels.reshape(rows, -1)
        self.unite(grid[1:], grid[:1])

    def pin(self, labels: Dim, reason: str) -> None:
        """Mark slots as impossible to remove; the first reason given for a label stays."""
        if labels is None:
            return
        free = labels[self._reason_of[labels] == 0]
        self._reason_of[free] = self._reasons.setdefault(reason, len(self._reasons))

    def mark_neurons(self, labels: LabelArray) -> None:
        """Mark slots as outputs of a layer: only classes that hold one can be pruned."""
        self._neuron[labels] = True

    def prunable(self, labels: LabelArray) -> NDArray[np.bool_]:
        """For each label, whether its class holds a neuron and no pin."""
        roots = self.find(np.arange(self._size, dtype=np.int64))
        neuron, pinned = np.zeros(self._size, bool), np.zeros(self._size, bool)
        neuron[roots[self._neuron[: self._size]]] = True
        pinned[roots[self._reason_of[: self._size] > 0]] = True
        mine = self.find(labels)
        return neuron[mine] & ~pinned[mine]

    def pin_reasons(self) -> dict[int, str]:
        """Return the reason of each pinned class, by its representative."""
        pinned, texts = np.flatnonzero(self._reason_of[: self._size]), list(self._reasons)
        reasons: dict[int, str] = {}
        for label, root in zip(pinned.tolist(), self.find(pinned).tolist(), strict=True):
            reasons.setdefault(root, texts[self._reason_of[label]])
        return reasons


def unlabelled(shape: Sequence[int]) -> Dims:
    """Return the dims of a tensor that carries no labels."""
    return (None,) * len(shape)


def replace_dim(dims: Dims, index: int, new: Dim) -> Dims:
    """Return dims with another one at an index, which may be negative."""
    index %= len(dims)
    return (*dims[:index], new, *dims[index + 1 :])
