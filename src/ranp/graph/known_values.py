"""Values of fake tensors that do not depend on data.

Fake tensors have no values, so code that asks for one (`torch.arange(1, 4).tolist()` in a loss)
fails on them, even where the answer does not depend on weights or data. What is computed from
constants and from real tensors alone is written down here, and computed for real when it is asked
for, and only then.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ranp.graph.inputs import TensorShape
from ranp.graph.known_outputs import known_output
from ranp.graph.operation import operands

VALUE_DEPENDENT = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
)
"""What fake tensors raise where a value is asked for."""

# Their results depend on the shape of their argument, not on its values. (Those of `empty` are not
# known: there is no telling what it returns.)
_LIKE = frozenset(
    f"aten::{name}"
    for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
)


@dataclass(frozen=True)
class Tiled:
    """A tensor brought to another shape: its values are repeated, or cut off."""

    tensor: Tensor
    shape: tuple[int, ...]

    def __call__(self) -> Tensor:
        """Return the tensor."""
        result = self.tensor.detach().as_subclass(Tensor)
        for dim, size in enumerate(self.shape):
            index = torch.arange(size, device=result.device) % result.shape[dim]
            result = result.index_select(dim, index)
        return result


@dataclass(frozen=True)
class _View:
    """A tensor as a view of a numbered storage; number -1 stands for one without known values."""

    storage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    bytes: int


@dataclass(frozen=True)
class _Call:
    """An operation whose inputs are all known, and the storages that it writes to."""

    func: Any
    args: Any
    outputs: tuple[_View, ...]
    written: frozenset[int]


class KnownValues:
    """Runs operations on fake tensors and answers questions about values where it can."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._made = 0
        self._calls: list[_Call] = []

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return `func(*args, **kwargs)` on fake tensors.

        Where the operation asks for values, and they do not depend on data, the result is computed
        from the values; otherwise the exception of the fake tensors is passed on.
        """
        mutated = _mutated(func, args, kwargs)
        known = self._is_known(func, [*operands(args), *operands(kwargs.values())], mutated)
        described = pytree.tree_map(self._describe, (args, kwargs)) if known else None
        out = known_output(func, args, kwargs)
        try:
            out = func(*args, **kwargs) if out is None else out
        except VALUE_DEPENDENT:
            if described is None:
                raise
            computed = self._compute(func, described)  # real tensors; their fake ones are known
            lift = torch.ops.aten.lift_fresh.default
            return pytree.tree_map_only(Tensor, lambda real: self.call(lift, (real,), {}), computed)
        returned = list(operands((out,)))
        outputs = [*returned, *mutated]
        if described is None:
            for tensor in outputs:
                self._numbers.pop(_storage_key(tensor), None)
        elif outputs:
            for tensor in outputs:
                self._track(tensor)
            views = tuple(map(self._describe, returned))
            written = frozenset(self._numbers[_storage_key(tensor)][0] for tensor in outputs)
            self._calls.append(_Call(func, described, views, written))
        return out

    def receive(self, leaf: Any) -> Any:
        """Return a fake tensor for a shape, or for a tensor whose values are known if asked for.

        Anything else is left as it is.
        """
        if isinstance(leaf, TensorShape):
            return torch.empty(leaf.shape, dtype=leaf.dtype)
        if isinstance(leaf, Tensor):
            leaf = Tiled(leaf, tuple(leaf.shape))
        if not isinstance(leaf, Tiled):
            return leaf
        fake = torch.empty(leaf.shape, dtype=leaf.tensor.dtype)
        self._track(fake)
        view = self._describe(fake)
        self._calls.append(_Call(leaf, ((), {}), (view,), frozenset((view.storage,))))
        return fake

    def _is_known(self, func: Any, inputs: list[Tensor], mutated: list[Tensor]) -> bool:
        if _has_no_values(func) or not all(map(_is_fake, mutated)):
            return False
        return func._schema.name in _LIKE or all(
            not _is_fake(tensor) or _storage_key(tensor) in self._numbers for tensor in inputs
        )

    def _track(self, tensor: Tensor) -> None:
        """Give a storage a number of its own for as long as it lives."""
        key = _storage_key(tensor)
        if key not in self._numbers:
            freed = partial(lambda numbers, key, _: numbers.pop(key, None), self._numbers, key)
            self._numbers[key] = (self._made, weakref.ref(tensor.untyped_storage(), freed))
            self._made += 1

    def _describe(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not _is_fake(leaf):
            return leaf
        number, _ = self._numbers.get(_storage_key(leaf), (-1, None))
        size = leaf.untyped_storage().nbytes()
        shape, stride = tuple(leaf.shape), tuple(leaf.stride())
        return _View(number, shape, stride, int(leaf.storage_offset()), leaf.dtype, size)

    def _compute(self, func: Any, described: Any) -> Any:
        """Compute an operation, after all the operations that its inputs depend on."""
        needed = _storages(described)
        calls = []
        for call in reversed(self._calls):
            if call.written & needed:
                calls.append(call)
                needed |= _storages(call.args)
        storages: dict[int, torch.UntypedStorage] = {}
        with _disable_current_modes(), torch.no_grad():
            for call in reversed(calls):
                returned = operands((_run(call.func, call.args, storages),))
                for view, tensor in zip(call.outputs, returned, strict=True):
                    if view.storage not in storages:
                        _materialize(view, storages).copy_(tensor)
            return _run(func, described, storages)


def _run(func: Any, described: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    args, kwargs = pytree.tree_map_only(_View, lambda view: _materialize(view, storages), described)
    return func(*args, **kwargs)


def _materialize(view: _View, storages: dict[int, torch.UntypedStorage]) -> Tensor:
    """Return the real tensor of a view; allocate its storage if there is none yet."""
    storage = storages.get(view.storage)
    if storage is None:
        storage = torch.UntypedStorage(view.bytes)
        if view.storage >= 0:
            storages[view.storage] = storage
    tensor = torch.empty(0, dtype=view.dtype)
    return tensor.set_(storage, view.offset, view.shape, view.stride)


def _storages(tree: Any) -> set[int]:
    return {leaf.storage for leaf in pytree.tree_leaves(tree) if isinstance(leaf, _View)}


@cache
def _has_no_values(func: Any) -> bool:
    """Return whether the results of an operation follow from nothing."""
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return is_random or func._schema.name.startswith("aten::empty")


def _mutated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an operation writes to."""
    places = _written_arguments(func)
    if not places:
        return []
    given = (kwargs.get(name, args[i] if i < len(args) else None) for i, name in places)
    return list(operands(given))


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Return positions and names of the arguments that an operation writes to."""
    return tuple(
        (i, argument.name)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _is_fake(tensor: Tensor) -> bool:
    return isinstance(tensor, fake_tensor.FakeTensor)


def _storage_key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
