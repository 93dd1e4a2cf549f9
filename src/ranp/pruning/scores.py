"""What scoring a network leaves behind: sums over batches, from which every ranking follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from ranp.errors import IntegrityError, UsageError
from ranp.files import canonical_json, load_tensors, save_tensors
from ranp.graph import ChannelGraph, shapes_fingerprint
from ranp.schemas import parse_metadata

ByLayer = Mapping[str, Tensor]
NeuronScores = Mapping[str, NDArray[np.float64]]
"""One number per neuron, by layer name, in the order of the channel graph's layers."""

_SCHEMA = 1
_GROUPS = ("sums", "weight_sums", "constants")
_OUTCOMES = ("agreement", "batches_needed")
"""Settings that scoring adds when it ends; scores that differ in them can be combined."""


def fingerprint(graph: ChannelGraph) -> str:
    """Return a hash of the names and shapes of all parameters and buffers, in their order."""
    return shapes_fingerprint(graph.tensor_shapes)


@dataclass(frozen=True, repr=False)
class Scores:
    """Statistics of every neuron, for any method, sparsity and lambda without touching data again.

    Attributes:
        batches: Number of scored batches.
        fan_in: Number of weights per neuron, by layer, in the order of the layers.
        sums: By statistic and layer, a sum per neuron over batches: `mpmg` is sum_v |g_uv|,
            `mnmg` is sum_v g_uv, and on request `grasp`.
        weight_sums: On request, sums over batches per single weight, with a row per neuron:
            `abs` of |g_uv| and `signed` of g_uv.
        constants: What the weights alone say: `magnitude` is sum_v |w_uv|, and `synflow`.
        settings: How the network was scored.
        fingerprint: Which network they are of (see `fingerprint`).
    """

    batches: int
    fan_in: Mapping[str, int]
    sums: Mapping[str, ByLayer]
    settings: Mapping[str, Any]
    fingerprint: str
    weight_sums: Mapping[str, ByLayer] = field(default_factory=dict)
    constants: Mapping[str, ByLayer] = field(default_factory=dict)

    def __repr__(self) -> str:
        neurons = sum(len(values) for values in self.constants.get("magnitude", {}).values())
        settings = ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        return (
            f"Scores({self.batches} batches, {len(self.fan_in)} layers, {neurons:,} neurons: "
            f"{self._statistics()}; {settings})"
        )

    def average(self, statistic: str) -> NeuronScores:
        """Return a statistic per neuron: its mean over batches, or its value if it needs none."""
        if statistic in self.constants:
            return _numpy(self.constants[statistic])
        self._require(statistic, self.sums)
        return {n: s / self.batches for n, s in _numpy(self.sums[statistic]).items()}

    def weight_averages(self, statistic: str) -> ByLayer:
        """Return a statistic per weight: its mean over batches."""
        self._require(statistic, self.weight_sums)
        return {name: total / self.batches for name, total in self.weight_sums[statistic].items()}

    def _require(self, statistic: str, among: Mapping[str, ByLayer]) -> None:
        if self.batches == 0:
            raise UsageError(
                "these scores were taken without data; score the network with a loader"
            )
        if statistic not in among:
            held = ", ".join([*self.sums, *self.weight_sums, *self.constants])
            raise UsageError(
                f"these scores hold no '{statistic}', only {held}; "
                "score the network again for the method you want"
            )

    def __add__(self, other: Scores) -> Scores:
        """Return the scores of both sets of batches together."""
        self.check_compatible(other)
        return replace(
            self,
            batches=self.batches + other.batches,
            sums=pytree.tree_map(torch.add, self.sums, other.sums),
            weight_sums=pytree.tree_map(torch.add, self.weight_sums, other.weight_sums),
            settings=self._conditions(),
        )

    def check_compatible(self, other: Scores) -> None:
        """Refuse scores of another network, or taken in another way; say what differs."""
        ours, theirs = self._conditions(), other._conditions()
        different = [
            f"'{key}' ({ours.get(key)} and {theirs.get(key)})"
            for key in {**ours, **theirs}
            if ours.get(key) != theirs.get(key)
        ]
        if self.fingerprint != other.fingerprint:
            different = ["the network"]
        elif self._statistics() != other._statistics():
            different.append(f"what was gathered ({self._statistics()} and {other._statistics()})")
        elif not different:
            equal = pytree.tree_map(torch.equal, self.constants, other.constants)
            different = [] if all(pytree.tree_leaves(equal)) else ["the weights"]
        if different:
            raise UsageError(
                f"these scores do not belong together: they differ in {', '.join(different)}; "
                "score again, or in the same way"
            )

    def check_network(self, graph: ChannelGraph) -> None:
        """Refuse scores of another network than that of a graph; say which layer differs."""
        if self.fingerprint != fingerprint(graph):
            raise IntegrityError("the scores are of another network; score this one")
        shapes = graph.tensor_shapes
        for name, layer in graph.layers.items():
            weights = prod(shapes.get(f"{name}.weight", shapes.get(name, (0,))))
            fan_in = self.fan_in.get(name, 0)
            # Layers that are cut from one parameter have a fan-in of 1.
            wrong = weights > 0 and fan_in not in (weights // len(layer), 1)
            for by_layer in (*self.sums.values(), *self.constants.values()):
                wrong |= name not in by_layer or len(by_layer[name]) != len(layer)
            if wrong:
                raise IntegrityError(
                    f"the scores are not of this network: '{name}' has {len(layer)} neurons of "
                    f"{weights // len(layer)} weights, unlike in 'fan_in' or the statistics; "
                    "score it again"
                )

    def _conditions(self) -> dict[str, Any]:
        """Return the settings that must agree for scores to be added."""
        return {key: value for key, value in self.settings.items() if key not in _OUTCOMES}

    def _statistics(self) -> str:
        return ", ".join(sorted([*self.sums, *self.weight_sums, *self.constants]))

    def save(self, path: str | Path) -> None:
        """Write the scores to one safetensors file, atomically and with a SHA-256."""
        tensors = {
            f"{group}/{statistic}/{layer}": tensor
            for group in _GROUPS
            for statistic, by_layer in getattr(self, group).items()
            for layer, tensor in by_layer.items()
        }
        about = {
            "schema": _SCHEMA,
            "kind": "scores",
            "batches": self.batches,
            "fan_in": list(self.fan_in.items()),
            "settings": dict(self.settings),
            "fingerprint": self.fingerprint,
        }
        save_tensors(path, tensors, {"ranp": canonical_json(about)})

    @classmethod
    def load(cls, path: str | Path) -> Scores:
        """Read scores; refuse damaged files and files of another kind."""
        tensors, metadata = load_tensors(path, "scores")
        about = parse_metadata(metadata, "ranp", "scores", path)
        fan_in = dict(about["fan_in"])
        parts = {key: [*key.split("/", 2), "", ""][:3] for key in tensors}
        for key, (group, _, layer) in parts.items():
            if group not in _GROUPS or layer not in fan_in or not tensors[key].isfinite().all():
                raise IntegrityError(
                    f"scores '{path}' are not valid: field '{key}' must be finite statistics of a "
                    "layer; score again"
                )
        groups: dict[str, dict[str, dict[str, Tensor]]] = {group: {} for group in _GROUPS}
        order = {layer: number for number, layer in enumerate(fan_in)}
        for key in sorted(parts, key=lambda key: order[parts[key][2]]):  # a file has its own order
            group, statistic, layer = parts[key]
            groups[group].setdefault(statistic, {})[layer] = tensors[key]
        summed = [tensor for sums in groups["sums"].values() for tensor in sums.values()]
        if about["batches"] == 0 and any(tensor.any() for tensor in summed):
            raise IntegrityError(
                f"scores '{path}' are not valid: field 'batches' must be at least 1 for their sums"
                "; score again"
            )
        return cls(
            about["batches"],
            fan_in,
            settings=about["settings"],
            fingerprint=about["fingerprint"],
            **groups,
        )


def _numpy(by_layer: ByLayer) -> dict[str, NDArray[np.float64]]:
    return {name: tensor.double().numpy() for name, tensor in by_layer.items()}
