"""Follows what is alive while a training step runs: how many bytes, and whose.

Every storage that an operation makes is counted from then on until it is freed, and belongs to
the module in whose forward it was made; what the backward pass makes belongs to the module whose
operation it differentiates.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ranp.graph import TensorShape
from ranp.graph.fake_tensors import device_of, view_of
from ranp.graph.known_values import KnownValues
from ranp.graph.operation import operands, tensors_in
from ranp.resources.kernel_workspace import Workspace, kept_by_output

_MODULE = "ranp.module"


@dataclass(frozen=True)
class Stored:
    """A storage: shape of its tensor, bytes per element, bytes in all, module it was made for."""

    shape: tuple[int, ...]
    item: int
    size: int
    owner: str


@dataclass(frozen=True)
class Kernel:
    """An operation that may take more memory, with shapes instead of tensors."""

    func: Any
    args: Any
    out: Any


@dataclass
class Log:
    """What a training step allocates, in a form that other numbers of channels can be put into.

    Attributes:
        events: In order: (1, storage) where it was made, (-1, storage) where it was freed, and
            (0, operation) after every operation, by number.
        storages: Every storage there was.
        kernels: Each operation that may need workspace; None for others.
        learnt: Numbers of the storages of learnt parameters.
    """

    events: list[tuple[int, int]] = field(default_factory=list)
    storages: list[Stored] = field(default_factory=list)
    kernels: list[Kernel | None] = field(default_factory=list)
    learnt: list[int] = field(default_factory=list)


class LiveBytes(TorchDispatchMode):
    """Adds up the bytes of storages from when an operation makes them until they are freed.

    Attributes:
        now: Bytes alive.
        bytes: Bytes alive after every operation, or during it if those are more.
        owners: The module on whose behalf each operation ran.
        log: What was allocated and freed, and when.
        failed: After a forward that raised, the module that it was in; "" for the network's own.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._workspace = workspace
        self._followed: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._modules: list[str] = []
        self._known = KnownValues()
        self.now = 0
        self.bytes: list[int] = []
        self.owners: list[str] = []
        self.log = Log()
        self.failed: str | None = None

    @property
    def peak(self) -> int:
        """The largest of `bytes`."""
        return max(self.bytes, default=0)

    @property
    def at_peak(self) -> Counter[str]:
        """Bytes by module at the peak; what a kernel takes while it runs is in them."""
        peak = self.bytes.index(self.peak)
        held: Counter[str] = Counter()
        for kind, number in self.log.events:
            if kind:
                stored = self.log.storages[number]
                held[stored.owner] += kind * stored.size
            elif number == peak:
                break
        held[self.owners[peak]] += self.peak - held.total()
        return +held

    def follow(self, tensor: Tensor, owner: str, at_least: int = 0) -> None:
        """Count a tensor's storage, `at_least` so many bytes, once, for as long as it lives."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._followed:
            return
        number = len(self.log.storages)
        self._followed[key] = (weakref.ref(storage, partial(self._freed, key)), number)
        exact = max(storage.nbytes(), at_least)
        is_whole = exact == tensor.numel() * tensor.element_size()
        shape, item = (tuple(tensor.shape), tensor.element_size()) if is_whole else ((exact,), 1)
        self.hold(shape, item, owner)

    def hold(self, shape: tuple[int, ...], item: int, owner: str) -> None:
        """Count a storage, of `item` bytes per element, for as long as nothing frees it."""
        block = self._workspace.block
        size = -(-math.prod(shape) * item // block) * block
        self.now += size
        self.log.events.append((1, len(self.log.storages)))
        self.log.storages.append(Stored(shape, item, size, owner))

    def follow_all(self, tree: Any, owner: str) -> None:
        """Count all tensors in nested containers."""
        for tensor in tensors_in(tree):
            self.follow(tensor, owner)

    def receive(self, batch: Any, owner: str) -> Any:
        """Return a batch as fake tensors, which count from now on (see `KnownValues.receive`)."""
        received = pytree.tree_map(self._known.receive, batch)
        self.follow_all(received, owner)
        return received

    def _freed(self, key: int, _: Any) -> None:
        _, number = self._followed.pop(key)
        self.now -= self.log.storages[number].size
        self.log.events.append((-1, number))

    def note(self, owner: str, workspace: int = 0, kernel: Kernel | None = None) -> None:
        """Record what is alive now, with the bytes of workspace that a kernel takes."""
        self.log.events.append((0, len(self.bytes)))
        self.bytes.append(self.now + workspace)
        self.owners.append(owner)
        self.log.kernels.append(kernel)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """While inside, operations are counted, and it is known in which module they are."""
        with ExitStack() as hooks:
            for name, module in model.named_modules():
                enter, leave = partial(self._enter, name), partial(self._leave, name)
                hooks.enter_context(module.register_forward_pre_hook(enter))
                hooks.enter_context(module.register_forward_hook(leave, always_call=True))
            with self:
                yield

    def _enter(self, name: str, module: nn.Module, args: Any) -> None:
        self._modules.append(name)
        self.failed = None

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        self._modules.pop()
        if output is None and self.failed is None:  # the innermost comes first
            self.failed = name
        _claim(name, tensors_in(output))

    def _owner(self) -> str:
        if self._modules:
            return self._modules[-1]
        node: Any = torch._C._current_autograd_node()
        return str(node.metadata.get(_MODULE, "")) if node is not None else ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (device := device_of(func, args)) is not None:
            return device
        # Modes that follow calls of functions have followed this one; what is below is no call.
        with torch._C.DisableTorchFunction():
            out = view_of(func, args, kwargs or {})
            if out is None:
                out = self._known.call(func, args, kwargs or {})
            outputs = list(operands((out,)))
            if outputs:
                self._count(func, args, out, outputs)
        return out

    def _count(self, func: Any, args: tuple[Any, ...], out: Any, outputs: list[Tensor]) -> None:
        """Count the outputs of an operation, and the workspace of its kernel."""
        owner = self._owner()
        kept = kept_by_output(func, args)
        for tensor in outputs:
            self.follow(tensor, owner, kept)
        if func._schema.name in self._workspace.operations:
            kernel = Kernel(func, shapes_of(list(args)), shapes_of(out))
            self.note(owner, self._workspace.bytes_of(func, args, out), kernel)
        else:
            self.note(owner)


def shapes_of(tree: Any) -> Any:
    """Return nested containers with shapes instead of tensors."""
    return pytree.tree_map_only(Tensor, TensorShape.of, tree)


def _claim(name: str, outputs: Any) -> None:
    """Mark the autograd nodes behind a module's outputs as its own, up to those of others."""
    waiting = [tensor.grad_fn for tensor in outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and _MODULE not in node.metadata:
            node.metadata[_MODULE] = name
            waiting += [following for following, _ in node.next_functions]
