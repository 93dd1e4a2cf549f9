"""The channel graph: layers, their neurons, and the classes of slots that live or die together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranp.display import html_table
from ranp.graph.inputs import Inputs, TensorShape
from ranp.graph.propagation import Contraction, Extent, ModuleCall, Pass
from ranp.graph.tracing import Mode

ClassArray = NDArray[np.int64]
Alive = NDArray[np.bool_]
Count = int | NDArray[np.int64]
"""A number for one choice of living classes, or one for each of several."""


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer.

    Attributes:
        name: The module's name; for a raw parameter used as a layer, the parameter's. A parameter
            of which several parts are layers (the three of attention) is numbered from #2 on.
        neurons: The channel class of each output channel.
        inputs: The channel class of each input channel.
        groups: The groups of a convolution.
        is_depthwise: Whether each output channel depends on one input channel only.
    """

    name: str
    neurons: ClassArray
    inputs: ClassArray
    groups: int
    is_depthwise: bool

    def __len__(self) -> int:
        return len(self.neurons)


@dataclass(frozen=True)
class ChannelGraph:
    """Which channels of a network belong together. All arrays hold indices of channel classes.

    Attributes:
        layers: Convolutions and linear layers by module name, in order of execution.
        tensors: For every parameter and buffer and each of its dimensions, the class of each slot;
            None where the dimension never shrinks.
        shapes: Shape, dtype and device of every parameter and buffer.
        pinned: Why a class cannot be removed; classes that are not listed can be.
        classes: Number of channel classes.
        calls: Calls of leaf modules in eval mode.
        contractions: Convolutions and matrix products in eval mode.
        inputs: The inputs that the network was traced with.
        notes: Findings of trial slimming, as sentences.
        passes: Recorded operations of each forward that was traced.
        switches: Attributes that were switched to reach more layers, and their values.
    """

    layers: Mapping[str, Layer]
    tensors: Mapping[str, tuple[ClassArray | None, ...]]
    shapes: Mapping[str, TensorShape]
    pinned: Mapping[int, str]
    classes: int
    calls: Sequence[ModuleCall]
    contractions: Sequence[Contraction]
    inputs: Inputs
    notes: tuple[str, ...] = ()
    passes: Mapping[Mode, Pass] = field(default_factory=dict, repr=False)
    switches: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"ChannelGraph({self.neurons:,} neurons in {len(self.layers)} layers, "
            f"{int(self.removable.sum()):,} removable channel classes)"
        )

    def _repr_html_(self) -> str:
        rows = (
            (name, len(layer), int(self.removable[layer.neurons].sum()))
            for name, layer in self.layers.items()
        )
        return html_table(repr(self), ("layer", "neurons", "removable"), rows)

    @cached_property
    def removable(self) -> Alive:
        """For each class, whether it can be removed."""
        removable = np.zeros(self.classes, bool)
        for layer in self.layers.values():
            removable[layer.neurons] = True
        removable[list(self.pinned)] = False
        return removable

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the full network's parameters and buffers, by name."""
        return {name: tensor.shape for name, tensor in self.shapes.items()}

    def extent(self, name: str) -> Extent:
        """Return the shape of a parameter or buffer, with classes where it can shrink."""
        pairs = zip(self.shapes[name].shape, self.tensors[name], strict=True)
        return tuple(size if classes is None else classes for size, classes in pairs)

    @property
    def neurons(self) -> int:
        """The number of neurons: output channels of all layers."""
        return sum(len(layer) for layer in self.layers.values())

    def all_alive(self) -> Alive:
        """Return the choice that keeps every class."""
        return np.ones(self.classes, bool)

    def kept(self, alive: Alive) -> dict[str, ClassArray]:
        """Return the neurons of each layer that stay, by number."""
        return {name: np.flatnonzero(alive[layer.neurons]) for name, layer in self.layers.items()}

    def empty_layers(self, alive: Alive) -> list[str]:
        """Return the layers that would lose all their neurons."""
        return [n for n, layer in self.layers.items() if not alive[layer.neurons].any()]


def slim_shape(extent: Extent, alive: Alive) -> tuple[int, ...]:
    """Return the sizes of an extent when only some classes live."""
    return tuple(size if isinstance(size, int) else int(alive[size].sum()) for size in extent)


def measure(extent: Extent, alive: Alive) -> Count:
    """Return the number of elements of an extent when only some classes live.

    For several choices of living classes, [classes, choices], it is a number for each.
    """
    product: Count = 1
    for size in extent:
        product = product * (size if isinstance(size, int) else alive[size].sum(axis=0))
    return product
