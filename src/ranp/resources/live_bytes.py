"""Follows what is alive while a training step runs: how many bytes, and whose.

Every storage that an operation makes is counted from then on until it is freed, and belongs to
the module in whose forward it was made; what the backward pass makes belongs to the module whose
operation it differentiates.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ranp.graph.known_values import KnownValues
from ranp.graph.operation import tensors_in
from ranp.resources.kernel_workspace import kept_by_output

_MODULE = "ranp.module"

Workspace = Callable[[Any, tuple[Any, ...], Any], int]
"""From an operation, its arguments and its outputs to the bytes it takes besides them."""


class LiveBytes(TorchDispatchMode):
    """Adds up the bytes of storages from when an operation makes them until they are freed.

    Attributes:
        now: Bytes alive.
        bytes: Bytes alive after every operation, or during it if those are more.
        owners: The module on whose behalf each operation ran.
        peak: The largest of `bytes`.
        at_peak: Bytes by module at the peak; what a kernel takes while it runs is in them.
    """

    def __init__(self, workspace: Workspace, rounding: int = 1) -> None:
        """Begin with nothing alive.

        Args:
            workspace: What operations take while they run.
            rounding: Sizes are rounded up to multiples of it.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._workspace = workspace
        self._rounding = rounding
        self._followed: dict[int, tuple[weakref.ref[Any], int, str]] = {}
        self._modules: list[str] = []
        self._known = KnownValues()
        self.now = self.peak = 0
        self.bytes: list[int] = []
        self.owners: list[str] = []
        self.at_peak: Counter[str] = Counter()

    def follow(self, tensor: Tensor, owner: str, at_least: int = 0) -> None:
        """Count a tensor's storage, once, for as long as it lives.

        Args:
            tensor: The tensor.
            owner: On whose behalf it was made.
            at_least: Bytes that its storage has, if those are more than its shape says.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._followed:
            return
        size = max(storage.nbytes(), at_least)
        size = -(-size // self._rounding) * self._rounding
        self._followed[key] = (weakref.ref(storage, partial(self._freed, key)), size, owner)
        self.now += size

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
        _, size, _ = self._followed.pop(key)
        self.now -= size

    def note(self, owner: str, besides: int = 0) -> None:
        """Write down what is alive now.

        Args:
            owner: On whose behalf.
            besides: What is taken for the moment, by nothing that is followed.
        """
        self.bytes.append(self.now + besides)
        self.owners.append(owner)
        if self.bytes[-1] > self.peak:
            self.peak = self.bytes[-1]
            self.at_peak = Counter()
            for _, size, whose in self._followed.values():
                self.at_peak[whose] += size
            self.at_peak[owner] += besides

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """While inside, operations are counted, and it is known in which module they are."""
        handles = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(partial(self._enter, name)))
            handles.append(
                module.register_forward_hook(partial(self._leave, name), always_call=True)
            )
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    @property
    def module(self) -> str:
        """The module whose forward is running; "" for the network's own, and outside of it."""
        return self._modules[-1] if self._modules else ""

    def _enter(self, name: str, module: nn.Module, args: Any) -> None:
        self._modules.append(name)

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        self._modules.pop()
        _claim(name, tensors_in(output))

    def _owner(self) -> str:
        if self._modules:
            return self._modules[-1]
        node: Any = torch._C._current_autograd_node()
        return str(node.metadata.get(_MODULE, "")) if node is not None else ""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = self._known.call(func, args, kwargs or {})
        made = list(tensors_in(out))
        if made:
            owner = self._owner()
            kept = kept_by_output(func, args)
            for tensor in made:
                self.follow(tensor, owner, kept)
            self.note(owner, self._workspace(func, args, out))
        return out


def _claim(name: str, outputs: Any) -> None:
    """Mark the autograd nodes behind a module's outputs as its own, up to those of others."""
    waiting = [tensor.grad_fn for tensor in outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and _MODULE not in node.metadata:
            node.metadata[_MODULE] = name
            waiting += [following for following, _ in node.next_functions]
