"""The check pass: the slim model must do, operation by operation, what the label pass foresaw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from ranp.errors import TraceError
from ranp.graph.channel_graph import Alive, ChannelGraph
from ranp.graph.labels import Dim, Dims, unlabelled
from ranp.graph.operation import PICKERS, Operation
from ranp.graph.propagation import Record
from ranp.graph.surgery import meta_copy, named_tensors
from ranp.graph.tracing import Mode, Site, Tracer
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
    """Run a slim model on fake tensors and compare it with the graph; raise `Divergence`."""
    check_copies(lambda: meta_copy(slim), graph, alive, graph.passes)


def check_copies(
    make_slim: Callable[[], nn.Module], graph: ChannelGraph, alive: Alive, modes: Iterable[Mode]
) -> None:
    """Run copies of a slim model without data, one in each mode; raise `Divergence`."""
    for mode in modes:
        slim = make_slim()
        shapes = {
            name: replace(graph.shapes[name], shape=tuple(tensor.shape))
            for name, tensor in named_tensors(slim)
        }
        replay = _Replay(slim, graph, graph.passes[mode].records, alive)
        try:
            replay.forward(shapes, graph.inputs, mode)
        except Divergence:
            raise
        except TraceError as error:
            replay.diverge(f"fails: {describe_failure(error.__cause__ or error)}")


class _Replay(Tracer):
    """Compares every operation with its record."""

    def __init__(
        self, model: nn.Module, graph: ChannelGraph, records: Sequence[Record], alive: Alive
    ) -> None:
        super().__init__(model)
        self._graph = graph
        self._alive = alive
        self._records = records
        self._position = 0
        self._dims = WeakTensorKeyDictionary()
        # The classes of a dimension go through many operations as one array.
        self._slim_of: dict[int, Dim] = {id(None): None}

    def tensors_made(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._dims[tensor] = self._slim(self._graph.tensors[name])

    def operation_ends(self, operation: Operation, site: Site) -> None:
        if not operation.outputs:
            return
        record = self._record
        if record is None or record.name != operation.name:
            wanted = "nothing more" if record is None else record.name
            self.diverge(f"calls {operation.name} instead of {wanted}")
        self._compare_shapes(operation, record)
        self._compare_slots(operation, record)
        self._compare_numbers(operation, record)
        self._position += 1

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
            # A group norm with a group per channel has as many groups as there are channels left.
            is_norm = operation.name == "aten::group_norm"
            follows = is_norm and number == operation["input"].shape[1]
            if number != full and not follows:
                self.diverge(
                    f"computes other values{calling_line()}: {operation.short_name} with "
                    f"{name}={number} instead of {full}"
                )

    def diverge(self, what: str) -> NoReturn:
        """Raise what the running module does otherwise than the record says."""
        record = None if self.site is None else self._record
        raise Divergence(f"with fewer channels, {self.place} {what}", record, self.kind)

    def _slim(self, dims: Dims) -> Dims:
        for dim in dims:
            if dim is not None and id(dim) not in self._slim_of:
                self._slim_of[id(dim)] = dim[self._alive[dim]]
        return tuple(self._slim_of[id(dim)] for dim in dims)
