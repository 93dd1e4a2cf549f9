"""Means and variances over channels, as norms that are written by hand take them.

Such a value depends on all channels, so they would have to stay. But where it only goes into those
channels again, element by element, it is the statistic of a norm, as the one inside of
`nn.LayerNorm`: a slim network takes it over the channels that it has. Where it goes any other way
(into a convolution, say, as in spatial attention) it is a feature, and the channels stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from ranp.graph.labels import Dims, LabelArray, LabelSpace
from ranp.graph.operation import Operation


@dataclass(frozen=True, eq=False)
class _Statistic:
    """The slots that it is taken over, and why they stay if it turns out to be a feature."""

    slots: LabelArray
    reason: str


class Statistics:
    """Follows statistics through a forward, up to where they meet their channels again."""

    def __init__(self, space: LabelSpace, dims: Callable[[Tensor], Dims]) -> None:
        self._space = space
        self._dims = dims
        self._held: dict[int, list[_Statistic]] = {}  # by the tensor's id

    def add(self, tensors: Iterable[Tensor], slots: LabelArray, reason: str) -> None:
        """Take tensors for statistics over some slots."""
        for tensor in tensors:
            self._held.setdefault(id(tensor), []).append(_Statistic(slots, reason))

    def follow(self, operation: Operation, *, carries: bool) -> None:
        """Hand statistics on from the inputs of an operation to its outputs.

        Args:
            operation: The operation, before its rule is applied.
            carries: Whether it works element by element, or brings to another shape. If not, it
                makes features of its statistics.
        """
        inputs = operation.inputs
        held = [s for tensor in inputs for s in self._held.get(id(tensor), ())]
        if not held:
            return
        if carries:
            held = [s for s in dict.fromkeys(held) if not self._meets(s, inputs)]
        written = inputs[0] if operation.name.endswith("_") else None
        if not carries or (written is not None and not self._held.get(id(written))):
            self._pin(held)  # what is written to may be a part of another tensor
            return
        for tensor in operation.outputs:
            self._held[id(tensor)] = list(held)  # the rule may add another to one of them

    def end(self, tensors: Iterable[Tensor]) -> None:
        """Pin what the network's outputs are statistics of."""
        for tensor in tensors:
            self._pin(self._held.get(id(tensor), ()))

    def _meets(self, statistic: _Statistic, tensors: Iterable[Tensor]) -> bool:
        """Return whether one of the tensors holds the channels, and not the statistic itself."""
        others = [t for t in tensors if statistic not in self._held.get(id(t), ())]
        dims = [dim for tensor in others for dim in self._dims(tensor) if dim is not None]
        return self._classes(statistic.slots) in map(self._classes, dims)

    def _classes(self, slots: LabelArray) -> set[int]:
        return set(self._space.find(slots).tolist())

    def _pin(self, statistics: Iterable[_Statistic]) -> None:
        for statistic in statistics:
            self._space.pin(statistic.slots, statistic.reason)
