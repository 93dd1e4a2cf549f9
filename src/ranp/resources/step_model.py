"""The peak of a training step as a function of the living channels, without simulating it again.

What a step allocates and frees, and in which order, does not depend on how many channels live; the
sizes do. A trial network with another width in every layer, beside the full one, shows which
dimension of which tensor follows which channels (several, where layers are so narrow, or groups of
a group norm so few, that one does not tell them apart). So the sizes of all tensors, and the
workspace of kernels, follow for any choice of channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from ranp.graph import Alive, ChannelGraph, TensorShape
from ranp.graph.fake_tensors import fake_empty
from ranp.resources.kernel_workspace import WORKSPACES
from ranp.resources.live_bytes import Kernel
from ranp.resources.training_memory import (
    Device,
    StepSettings,
    TrainingMemory,
    allowance_for,
    step_temporaries,
)

Ints = NDArray[np.int64]
Dim = tuple[int, int]
"""A factor, and the number of the array of channels whose living ones it is multiplied with."""


_DRAWS = 64
"""How many times trial networks are drawn to find some that tell all channels apart."""

_MOST_TRIALS = 6
"""How many of them are simulated at most."""


class NotAProduct(Exception):
    """A step allocates something that does not follow from counts of channels."""


@dataclass(frozen=True)
class _Sizes:
    """The shape of a tensor, or a number, as a function of the living channels."""

    dims: tuple[Dim, ...]
    dtype: torch.dtype | None = None

    def at(self, counts: Sequence[int]) -> tuple[int, ...]:
        return tuple(factor * counts[number] for factor, number in self.dims)

    def make(self, counts: Sequence[int], mode: FakeTensorMode) -> Any:
        size = self.at(counts)
        return size[0] if self.dtype is None else fake_empty(mode, size, self.dtype)


@dataclass(frozen=True)
class _KernelModel:
    """The workspace of a kernel, as a function of the living channels."""

    func: Any
    leaves: tuple[Any, ...]
    spec: Any
    _known: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def bytes_at(self, counts: Sequence[int], device: Device, mode: FakeTensorMode) -> int:
        key = tuple(each.at(counts) for each in self.leaves if isinstance(each, _Sizes))
        if key not in self._known:
            made = [
                each.make(counts, mode) if isinstance(each, _Sizes) else each
                for each in self.leaves
            ]
            args, out = pytree.tree_unflatten(made, self.spec)
            self._known[key] = WORKSPACES[device].bytes_of(self.func, tuple(args), out)
        return self._known[key]

    def rescaled(self, kernel: Kernel | None, full: Ints) -> _KernelModel:
        """Return the same with what it works on in another step, with all channels."""
        if kernel is None:
            raise NotAProduct("other operations run in this step")
        leaves, spec = pytree.tree_flatten((kernel.args, kernel.out))
        pairs = zip(self.leaves, leaves, strict=True)
        return _KernelModel(self.func, tuple(_rescaled(*pair, full) for pair in pairs), spec)


def _rescaled(known: Any, leaf: Any, full: Ints) -> Any:
    if not isinstance(known, _Sizes):
        return leaf
    shape = leaf.shape if isinstance(leaf, TensorShape) else (leaf,)
    dims = zip(shape, (number for _, number in known.dims), strict=True)
    dtype = leaf.dtype if isinstance(leaf, TensorShape) else None
    return _Sizes(tuple((size // int(full[number]), number) for size, number in dims), dtype)


@dataclass(frozen=True)
class StepModel:
    """Sizes of all that a training step allocates, as functions of the living channels.

    Attributes:
        arrays: Channel classes of the dimensions that can shrink.
        full: Their counts in the full network, and a 1.
        items: Bytes per element of every storage.
        factors: For every dimension of every storage, what does not depend on channels.
        widths: For every dimension the number of its array; `len(arrays)` stands for none.
        events: What is allocated, freed and noted, in order (see `LiveBytes`).
        kernels: By operation, the workspace of its kernel.
        learnt: Numbers of the storages of learnt parameters.
        margin: Bytes to be added for a loss that is not counted.
        step: How the network is trained.
        least: The fewest living channels that it was learnt from.
    """

    arrays: tuple[Ints, ...]
    full: Ints
    items: Ints
    factors: Ints
    widths: Ints
    events: Ints
    kernels: dict[int, _KernelModel]
    learnt: Ints
    margin: int
    step: StepSettings
    least: int

    @classmethod
    def of(
        cls,
        graph: ChannelGraph,
        predict: Callable[[Alive], TrainingMemory],
        step: StepSettings,
        least: int = 1,
    ) -> StepModel:
        """Learn from the full network and as many trial networks as it takes.

        A single channel is broadcast where several are not, as in attention gates: then other
        operations run, and a model is learnt from layers of at least 2 channels.

        Raises:
            NotAProduct: The step allocates something that does not follow from channels.
        """
        arrays = tuple(_arrays(graph))
        trials = _trials(graph, arrays, least)
        memories = [predict(alive) for alive in trials]
        logs = [memory.log for memory in memories]
        events = [_in_order(log.events) for log in logs]
        if not all(np.array_equal(each, events[0]) for each in events):
            raise NotAProduct("other operations run with fewer channels")
        table = _Table(arrays, trials)
        stored = zip(*(log.storages for log in logs), strict=True)
        dims = [table.dims([storage.shape for storage in each]) for each in stored]
        kernels = zip(*(log.kernels for log in logs), strict=True)
        return cls(
            arrays,
            np.array([*map(len, arrays), 1], dtype=np.int64),
            np.array([storage.item for storage in logs[0].storages], dtype=np.int64),
            _padded([[factor for factor, _ in each] for each in dims], 1),
            _padded([[number for _, number in each] for each in dims], len(arrays)),
            events[0],
            {at: table.kernel(each) for at, each in enumerate(kernels) if each[0]},
            np.array(logs[0].learnt, dtype=np.int64),
            memories[0].loss_margin,
            step,
            least,
        )

    def rescaled(self, memory: TrainingMemory) -> StepModel:
        """Return the same for another batch, or another size of volumes.

        Raises `NotAProduct` if other operations run in that step.
        """
        log = memory.log
        if not np.array_equal(_in_order(log.events), self.events):
            raise NotAProduct("other operations run in this step")
        shapes = _padded([storage.shape for storage in log.storages], 1)
        if shapes.shape != self.widths.shape or (shapes % self.full[self.widths]).any():
            raise NotAProduct("other tensors are made in this step")
        return replace(
            self,
            items=np.array([storage.item for storage in log.storages], dtype=np.int64),
            factors=shapes // self.full[self.widths],
            kernels={
                at: kernel.rescaled(log.kernels[at], self.full)
                for at, kernel in self.kernels.items()
            },
            margin=memory.loss_margin,
        )

    def covers(self, alive: Alive) -> bool:
        """Return whether layers are no narrower than those that it was learnt from."""
        return self.least == 1 or not ((self._counts(alive) < self.least) & (self.full > 1)).any()

    def _counts(self, alive: Alive) -> Ints:
        return np.array([*(alive[array].sum() for array in self.arrays), 1], dtype=np.int64)

    def peak(self, alive: Alive) -> int:
        """Return the predicted peak of a step with some living channels, if it covers these."""
        counts = self._counts(alive)
        exact = self.items * (self.factors * counts[self.widths]).prod(axis=1)
        optimizer, device = self.step.optimizer, self.step.device
        block = WORKSPACES[device].block
        sizes = -(-exact // block) * block
        kind, number = self.events.T
        is_note = kind == 0
        now = np.cumsum(np.where(is_note, 0, kind * sizes[np.where(is_note, 0, number)]))
        held = now[is_note]
        plain = counts.tolist()
        with FakeTensorMode() as mode:
            for at, kernel in self.kernels.items():
                held[at] += kernel.bytes_at(plain, device, mode)
        stepping = step_temporaries(exact[self.learnt].tolist(), optimizer, device)
        highest = max(int(held.max()), int(now[-1]) + max(stepping))
        return highest + allowance_for(highest, device) + self.margin


class _Table:
    """Finds the channels that a size follows, by what it is in each trial network."""

    def __init__(self, arrays: Sequence[Ints], trials: Sequence[Alive]) -> None:
        self._none = len(arrays)
        self._number = {
            tuple(int(alive[array].sum()) for alive in trials): number
            for number, array in reversed(list(enumerate(arrays)))
        }

    def dim(self, sizes: tuple[int, ...]) -> Dim:
        """Return the channels that a dimension follows."""
        if len(set(sizes)) == 1:
            return sizes[0], self._none
        # Batch and channels can be one dimension (instance norm), so counts may have a factor.
        for factor in _divisors(math.gcd(*sizes)):
            number = self._number.get(tuple(size // factor for size in sizes))
            if number is not None:
                return factor, number
        raise NotAProduct(f"a dimension of {sizes} follows no channels")

    def dims(self, shapes: Sequence[tuple[int, ...]]) -> tuple[Dim, ...]:
        """Return the channels that each dimension follows."""
        if len({len(shape) for shape in shapes}) > 1:
            raise NotAProduct(f"a tensor has the shapes {list(shapes)}")
        return tuple(self.dim(sizes) for sizes in zip(*shapes, strict=True))

    def kernel(self, kernels: Sequence[Kernel | None]) -> _KernelModel:
        """Return what a kernel takes in terms of channels."""
        flat = [pytree.tree_flatten((k.args, k.out)) for k in kernels if k is not None]
        leaves = [self._leaf(each) for each in zip(*(leaves for leaves, _ in flat), strict=True)]
        assert kernels[0] is not None
        return _KernelModel(kernels[0].func, tuple(leaves), flat[0][1])

    def _leaf(self, leaves: Sequence[Any]) -> Any:
        first = leaves[0]
        if isinstance(first, TensorShape):
            return _Sizes(self.dims([leaf.shape for leaf in leaves]), first.dtype)
        if isinstance(first, int) and not isinstance(first, bool):
            return _Sizes((self.dim(tuple(leaves)),))
        return first


def _padded(rows: Sequence[Sequence[int]], value: int) -> Ints:
    """Return rows as a matrix, filled up with a value."""
    rank = max(map(len, rows))
    return np.array([[*row, *[value] * (rank - len(row))] for row in rows], dtype=np.int64)


def _in_order(events: Sequence[tuple[int, int]]) -> Ints:
    """Sort what happens between two operations: the order there does not matter, and varies."""
    kind, number = np.array(events, dtype=np.int64).reshape(-1, 2).T
    notes = np.cumsum(kind == 0) - (kind == 0)
    order = np.lexsort((number, -np.abs(kind), notes))
    return np.stack([kind, number], axis=1)[order]


def _divisors(number: int) -> Iterator[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    yield from dict.fromkeys([*small, *(number // d for d in reversed(small))])


def _arrays(graph: ChannelGraph) -> Iterator[Ints]:
    """Yield every array of channel classes that a dimension has, once."""
    dims = [dim for dims in graph.tensors.values() for dim in dims]
    for label_pass in graph.passes.values():
        dims += [d for record in label_pass.records for _, dims in record.outputs for d in dims]
    yield from {dim.tobytes(): dim for dim in dims if dim is not None}.values()


def _trials(graph: ChannelGraph, arrays: Sequence[Ints], least: int) -> list[Alive]:
    """Return the full network, and as few others as tell all channels apart by their widths.

    Raises `NotAProduct` if that takes too many.
    """
    contents = [_content(array) for array in arrays]
    for number, seed in product(range(1, _MOST_TRIALS + 1), range(_DRAWS)):
        trials = _draw(graph, seed, number, least)
        if _tells_apart(graph, trials, arrays, contents):
            return trials
    raise NotAProduct("no trial networks tell all channels apart")


def _content(array: Ints) -> tuple[bytes, bytes]:
    """Return the classes of an array and their shares of it; arrays with the same are multiples."""
    classes, numbers = np.unique(array, return_counts=True)
    return classes.tobytes(), (numbers // np.gcd.reduce(numbers)).tobytes()


def _tells_apart(
    graph: ChannelGraph,
    trials: Sequence[Alive],
    arrays: Sequence[Ints],
    contents: Sequence[tuple[bytes, bytes]],
) -> bool:
    """Return whether counts in some networks, or multiples of them, are those of one array only."""
    seen: dict[tuple[int, ...], tuple[bytes, bytes]] = {}
    for array, content in zip(arrays, contents, strict=True):
        counts = [int(alive[array].sum()) for alive in trials]
        common = math.gcd(*counts) or 1
        key = tuple(count // common for count in counts)
        if len(set(key)) == 1:
            if graph.removable[array].any():
                return False  # it would be taken for a constant
        elif seen.setdefault(key, content) != content:
            return False
    return True


def _draw(graph: ChannelGraph, seed: int, number: int, least: int) -> list[Alive]:
    """Return the full network, and others in which layers of one width have other widths each.

    A single one has all layers pruned, the first ones of a width each to another one. Layers of two
    classes of channels are then alike: more networks than one may keep all channels of a layer.
    """
    random = np.random.default_rng(seed)
    trials = [graph.all_alive() for _ in range(1 + number)]
    orders: dict[int, Iterator[int]] = {}
    for neurons in {
        layer.neurons.tobytes(): layer.neurons for layer in graph.layers.values()
    }.values():
        classes = np.unique(neurons[graph.removable[neurons]])
        most = len(classes) - 1
        if most < 1:
            continue
        lowest = min(least, most)
        if number == 1:
            if most not in orders:
                orders[most] = cycle((lowest + random.permutation(most + 1 - lowest)).tolist())
            widths = [next(orders[most])]
        else:
            widths = random.integers(lowest, most + 1, number, endpoint=True).tolist()
        for alive, width in zip(trials[1:], widths, strict=True):
            alive[classes[width:]] = False
    for alive in trials:
        for name in graph.empty_layers(alive):
            alive[graph.layers[name].neurons[0]] = True
    return trials
