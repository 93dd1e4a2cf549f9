"""The check pass: the slim model must do, operation by operation, what the label pass foresaw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from ranp.errors import TraceError
from ranp.graph.channel_graph import Alive, ChannelGraph
from ranp.graph.labels import Dims
from ranp.graph.operation import POSITIONAL, RULES, Operation
from ranp.graph.propagation import ModuleStack, Record, fake_forward
from ranp.graph.surgery import mode, named_tensors


class Divergence(TraceError):
    """The slim model does something else than the graph says.

    Attributes:
        record: The operation of the label pass where the two part, if it was an operation.
        module: The module that was running.
    """

    def __init__(self, message: str, record: Record | None, module: str) -> None:
        super().__init__(message)
        self.record = record
        self.module = module


class _Replay(TorchDispatchMode):
    def __init__(self, model: nn.Module, records: tuple[Record, ...], alive: Alive) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack = ModuleStack(model)
        self.alive = alive
        self.records = records
        self.position = 0
        self.current: Record | None = None
        self.dims = WeakTensorKeyDictionary()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.name not in RULES and func is not torch.ops.prim.device.default:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        expected = self.records[self.position] if self.position < len(self.records) else None
        self.current = expected
        out = func(*args, **kwargs)
        operation = Operation.bind(func, args, kwargs, out)
        if operation.outputs:
            self.position += 1
            self._compare(operation, expected)
        self.current = None
        return out

    def _compare(self, operation: Operation, expected: Record | None) -> None:
        if expected is None or expected.name != operation.name:
            wanted = "nothing more" if expected is None else expected.name
            self._diverge(f"calls {operation.name} instead of {wanted}", expected)
        assert expected is not None
        for tensor, (shape, dims) in zip(operation.outputs, expected.outputs, strict=True):
            slim = self.slim(dims)
            sizes = tuple(
                size if dim is None else len(dim) for size, dim in zip(shape, slim, strict=True)
            )
            actual = tuple(tensor.shape)
            if actual != sizes:
                what = f"{operation.name[6:]} gives the shape {actual} where {sizes} is right"
                self._diverge(what, expected)
            self.dims[tensor] = slim
        if operation.name in POSITIONAL:
            self._compare_slots(operation, expected)

    def _compare_slots(self, operation: Operation, expected: Record) -> None:
        """Shapes can agree where the slots do not: asks the rule which ones were picked."""
        result = RULES[operation.name](_Reader(self), operation)  # type: ignore[arg-type]
        found = result if isinstance(result, list) else [result] * len(operation.outputs)
        for dims, (_, wanted) in zip(found, expected.outputs, strict=True):
            for dim, slim in zip(dims, self.slim(wanted), strict=True):
                if dim is not None and slim is not None and not np.array_equal(dim, slim):
                    self._diverge(f"{operation.name[6:]} picks other channels by number", expected)

    def slim(self, dims: Dims) -> Dims:
        return tuple(None if dim is None else dim[self.alive[dim]] for dim in dims)

    def _diverge(self, what: str, record: Record | None) -> None:
        where = self.stack.top.path or "the network's forward"
        raise Divergence(f"with fewer channels, {where} {what}", record, self.stack.top.path)


class _Reader:
    """The part of a `Propagator` that positional rules use, with nothing to decide."""

    def __init__(self, replay: _Replay) -> None:
        self._replay = replay
        self.space = None

    def dims(self, tensor: Tensor) -> Dims:
        known: Dims | None = self._replay.dims.get(tensor)
        return (None,) * tensor.dim() if known is None else known

    def pin(self, dim: Any, reason: str) -> None:
        """Pins were set in the label pass."""

    def choose(self, candidates: int) -> int:
        """Readings were settled in the label pass; all leave the slots themselves alone."""
        return 0


def check(slim: nn.Module, graph: ChannelGraph, alive: Alive) -> None:
    """Runs a slim model on fake tensors and compares it with the graph; raises `Divergence`.

    Args:
        slim: The slim model; its tensors are not touched.
        graph: The channel graph of the full model.
        alive: Which classes live in the slim model.
    """
    for training, label_pass in graph.passes.items():
        replay = _Replay(slim, label_pass.records, alive)
        try:
            with mode(slim, training), fake_forward(replay.stack):
                tensors = {}
                for name, tensor in named_tensors(slim):
                    shape = replace(graph.shapes[name], shape=tuple(tensor.shape))
                    tensors[name] = shape.materialize()
                    replay.dims[tensors[name]] = replay.slim(graph.tensors[name])
                args, kwargs = graph.inputs.materialize()
                with replay:
                    torch.func.functional_call(slim, tensors, args, kwargs)
        except Divergence:
            raise
        except TraceError as error:
            raise Divergence(str(error), replay.current, replay.stack.top.path) from error
