"""The cost of a network as a function of channel counts, in plain values.

`ranp.resources.count` evaluates the formulas of a network's calls for one choice of channels. Here
the formulas themselves are stored, as products of counts, for a page that has neither graph nor
torch to evaluate at any choice: exactly, since all are whole numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ranp.graph import ChannelGraph, Extent
from ranp.recording.packing import constant_runs
from ranp.resources import Costs
from ranp.resources.counting import parameter_extents
from ranp.resources.formulas import (
    AdaptivePooling,
    Convolution,
    Formula,
    Linear,
    PerElement,
    Softmax,
    formula_of,
)


class _Dimensions:
    """Collects the class arrays that sizes depend on, each once."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._numbers: dict[bytes, int] = {}
        self._multiplicities: list[NDArray[np.int64]] = []

    def number(self, slots: NDArray[np.int64]) -> int:
        key = np.ascontiguousarray(slots).tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._multiplicities)
            self._multiplicities.append(np.bincount(slots, minlength=self._classes))
        return self._numbers[key]

    def size(self, extent: Extent) -> dict[str, Any]:
        """An extent as a constant times counts."""
        constant = math.prod(size for size in extent if isinstance(size, int))
        return {
            "size": constant,
            "dims": [self.number(s) for s in extent if not isinstance(s, int)],
        }

    def atoms(self) -> tuple[NDArray[np.int64], list[list[list[int]]]]:
        """Sorts classes into atoms that every dimension holds equally often.

        Returns:
            The atom of every class, and for each dimension pairs [atom, how often it holds it].
        """
        atom = np.zeros(self._classes, np.int64)
        for multiplicity in self._multiplicities:
            pairs = atom * (int(multiplicity.max()) + 1) + multiplicity
            atom = np.unique(pairs, return_inverse=True)[1].ravel()
        first = np.unique(atom, return_index=True)[1]
        dims = [
            [[a, int(multiplicity[c])] for a, c in enumerate(first.tolist()) if multiplicity[c]]
            for multiplicity in self._multiplicities
        ]
        return atom, dims


def cost_model(model: nn.Module, graph: ChannelGraph, costs: Costs) -> dict[str, Any]:
    """The paper's counting rules for a network, as products of channel counts.

    Args:
        model: The full network.
        graph: Its channel graph.
        costs: What it costs in full: the model's rows are its layers, in their order.

    Returns:
        `atoms`, runs of equally counted channel classes; `dims`, which atoms a dimension counts;
        `calls`, output elements and operations of each call of a row; `tensors`, parameters;
        `neurons`, the dimension of each convolution or linear layer.
    """
    row = {layer.name: i for i, layer in enumerate(costs.layers)}
    modules = dict(model.named_modules())
    dims = _Dimensions(graph.classes)
    calls = [
        {
            "row": row[call.name],
            **dims.size(call.output),
            **_stored(formula_of(modules[call.name], call, graph), dims),
        }
        for call in graph.calls
    ]
    tensors = [
        {"row": row[owner], **dims.size(extent)}
        for owner, extent in parameter_extents(model, graph)
    ]
    neurons = [dims.number(layer.neurons) for layer in graph.layers.values()]
    atom, held = dims.atoms()
    return {
        "atoms": constant_runs(atom),
        "dims": held,
        "calls": calls,
        "tensors": tensors,
        "neurons": neurons,
    }


def _stored(formula: Formula | None, dims: _Dimensions) -> dict[str, Any]:
    """A formula in plain values; nothing is counted where there is none."""
    match formula:
        case None:
            return {"op": "each", "cost": 0}
        case Linear(inputs, bias):
            return {"op": "linear", "inputs": dims.size(inputs), "bias": bias}
        case Convolution(inputs, groups, kernel, bias):
            return {
                "op": "conv",
                "inputs": dims.size(inputs),
                "groups": groups or 0,  # 0: as many as inputs
                "kernel": kernel,
                "bias": bias,
            }
        case PerElement(cost):
            return {"op": "each", "cost": cost}
        case AdaptivePooling(inputs):
            return {"op": "adaptive", "inputs": dims.size(inputs)}
        case Softmax(batch, channels):
            return {"op": "softmax", "batch": batch, "channels": dims.size(channels)}
