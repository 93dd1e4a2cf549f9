"""The check pass: the slim model must do, operation by operation, what the label pass foresaw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from ranp.errors import TraceError
from ranp.graph.channel_graph import Alive, ChannelGraph
from ranp.graph.labels import Dims, unlabelled
from ranp.graph.operation import PICKERS, Operation
from ranp.graph.propagation import Record
from ranp.graph.surgery import named_tensors
from ranp.graph.tracing import Site, Tracer
from ranp.user_code import calling_line, describe_failure


class Divergence(TraceError):
    """The slim model does something else than the graph says.

    Attributes:
        record: The operation of the label pass where the two part, if it was an operation.
        kind: The class of the module that was running.
    """

    def __init__(self, message: str, record: Record | None, kind: str) -> None:
        super().__init__(message)
        self.record = record
        self.kind = kind


def check(slim: nn.Module, graph: ChannelGraph, alive: Alive) -> None:
    """Run a slim model on fake tensors and compare it with the graph; raise `Divergence`.

    Args:
        slim: The slim model; it is not touched.
        graph: The channel graph of the full model.
        alive: Which classes live in the slim model.
    """
    shapes = {
        name: replace(graph.shapes[name], shape=tuple(tensor.shape))
        for name, tensor in named_tensors(slim)
    }
    for mode, label_pass in graph.passes.items():
        replay = _Replay(slim, graph, label_pass.records, alive)
        try:
            replay.forward(shapes, graph.inputs, mode)
        except Divergence:
            raise
        except TraceError as error:
            replay.diverge(f"fails: {describe_failure(error.__cause__ or error)}")


class _Replay(Tracer):
    """Compares every operation with its record."""

    def __init__(
        self, model: nn.Module, graph: ChannelGraph, records: tuple[Record, ...], alive: Alive
    ) -> None:
        super().__init__(model)
        self._graph = graph
        self._alive = alive
        self._records = records
        self._position = 0
        self._running = False
        self._dims = WeakTensorKeyDictionary()

    def tensors_made(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._dims[tensor] = self._slim(self._graph.tensors[name])

    def operation_begins(self, site: Site) -> None:
        self._running = True

    def operation_ends(self, operation: Operation) -> None:
        if operation.outputs:
            record = self._record
            if record is None or record.name != operation.name:
                wanted = "nothing more" if record is None else record.name
                self.diverge(f"calls {operation.name} instead of {wanted}")
            else:
                self._compare_shapes(operation, record)
                self._compare_slots(operation, record)
                self._compare_numbers(operation, record)
            self._position += 1
        self._running = False

    @property
    def _record(self) -> Record | None:
        """The record of the operation that runs now or comes next."""
        return self._records[self._position] if self._position < len(self._records) else None

    def _compare_shapes(self, operation: Operation, record: Record) -> None:
        for tensor, (shape, dims) in zip(operation.outputs, record.outputs, strict=True):
            slim = self._slim(dims)
            right = tuple(s if d is None else len(d) for s, d in zip(shape, slim, strict=True))
            if tensor.shape != right:
                found = tuple(tensor.shape)
                self.diverge(f"{operation.short_name} gives the shape {found} instead of {right}")
            self._dims[tensor] = slim

    def _compare_slots(self, operation: Operation, record: Record) -> None:
        """Compare which slots were picked: shapes can agree where the slots do not."""
        pick = PICKERS.get(operation.name)
        if pick is None:
            return
        source = operation["self"]
        result = pick(self._dims.get(source, unlabelled(source.shape)), operation)
        found = result if isinstance(result, list) else [result]
        for dims, (_, wanted) in zip(found, record.outputs, strict=True):
            for dim, slots in zip(dims, self._slim(wanted), strict=True):
                if dim is not None and slots is not None and not np.array_equal(dim, slots):
                    self.diverge(f"picks other channels by number ({operation.short_name})")

    def _compare_numbers(self, operation: Operation, record: Record) -> None:
        """Compare scalar arguments: shapes tell nothing of `x / x.shape[1]`."""
        for name, number in operation.numbers.items():
            full = record.numbers.get(name)
            if number != full and not self._is_depthwise_norm(operation, number):
                self.diverge(
                    f"computes other values{calling_line()}: {operation.short_name} with "
                    f"{name}={number} instead of {full}"
                )

    def _is_depthwise_norm(self, operation: Operation, groups: float) -> bool:
        """Return whether a group norm has a group per channel, so that groups follow channels."""
        return operation.name == "aten::group_norm" and groups == operation["input"].shape[1]

    def diverge(self, what: str) -> None:
        record = self._record if self._running else None
        raise Divergence(f"with fewer channels, {self.place} {what}", record, self.kind)

    def _slim(self, dims: Dims) -> Dims:
        return tuple(None if dim is None else dim[self._alive[dim]] for dim in dims)
