"""Records a forward once on fake tensors: its operations and module calls.

Running a model on fake tensors is what takes time; labels are propagated over the recording, as
often as trials ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from ranp.graph.inputs import Inputs, TensorShape
from ranp.graph.operation import Operation, tensors_in, tensors_within
from ranp.graph.tracing import Mode, Site, Tracer


@dataclass(frozen=True)
class RecordedOperation:
    """An operation, the module that called it, and its `numbers`, which stand-ins do not have."""

    path: str
    site: Site
    operation: Operation
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class ModuleBegin:
    """The call of a module: its class, and the tensors that enter it."""

    path: str
    kind: str
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class ModuleEnd:
    """The return of a module: its class, the tensors that entered and those that leave it."""

    path: str
    kind: str
    is_leaf: bool
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


Event = RecordedOperation | ModuleBegin | ModuleEnd


@dataclass(frozen=True)
class Recording:
    """A forward: parameters and buffers by name, what happened in order, and the outputs."""

    tensors: Mapping[str, Tensor]
    events: tuple[Event, ...]
    outputs: tuple[Tensor, ...]


class Recorder(Tracer):
    """Runs a model's forward and records what it does.

    Other tensors of the same shapes stand for the forward's own. Holding on to those would change
    what is recorded (a new tensor that others hold is detached first), and one that is reshaped
    in place would seem to have had its last shape all along.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._tensors: dict[str, Tensor] = {}
        self._events: list[Event] = []
        self._stand_ins = WeakTensorKeyDictionary()

    def record(self, tensors: Mapping[str, TensorShape], inputs: Inputs, mode: Mode) -> Recording:
        """Run one forward (see `Tracer.forward`)."""
        output = self.forward(tensors, inputs, mode)
        return Recording(
            self._tensors, tuple(self._events), tuple(map(self._stand_in, tensors_within(output)))
        )

    def tensors_made(self, tensors: Mapping[str, Tensor]) -> None:
        """Record parameters and buffers."""
        self._tensors = {name: self._stand_in(tensor) for name, tensor in tensors.items()}

    def module_begins(self, path: str, inputs: Any) -> None:
        """Record the call of a module."""
        entering = tuple(map(self._stand_in, tensors_in(inputs)))
        self._events.append(ModuleBegin(path, self.kind, entering))

    def module_ends(self, path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        """Record the return of a module."""
        sides = [tuple(map(self._stand_in, tensors_in(side))) for side in (inputs, output)]
        self._events.append(ModuleEnd(path, type(module).__name__, is_leaf(module), *sides))

    def operation_ends(self, operation: Operation, site: Site) -> None:
        """Record the operation."""
        if operation.outputs:
            recorded = replace(
                operation,
                arguments={
                    name: self._with_stand_ins(v) for name, v in operation.arguments.items()
                },
                outputs=tuple(self._stand_in(t, reshaped=True) for t in operation.outputs),
            )
            self._events.append(RecordedOperation(self.path, site, recorded, operation.numbers))

    def _with_stand_ins(self, argument: Any) -> Any:
        """Return an argument of an operation with stand-ins for its tensors."""
        if isinstance(argument, Tensor):
            return self._stand_in(argument)
        if isinstance(argument, (list, tuple)):
            return [self._with_stand_ins(each) for each in argument]
        return argument

    def _stand_in(self, tensor: Tensor, *, reshaped: bool = False) -> Tensor:
        """Return the stand-in of a tensor, which may have been reshaped in place just now."""
        stand_in: Tensor | None = self._stand_ins.get(tensor)
        if stand_in is None or (reshaped and stand_in.shape != tensor.shape):
            with _disable_current_modes():
                stand_in = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            self._stand_ins[tensor] = stand_in
        return stand_in


def is_leaf(module: nn.Module) -> bool:
    """Return whether a module has no modules of its own; parametrizations do not count as such."""
    return all(name == "parametrizations" for name, _ in module.named_children())
