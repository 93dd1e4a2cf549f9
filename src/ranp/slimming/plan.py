"""A plan: which neurons of a network are kept. Portable, readable, and checked on reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ranp._version import __version__
from ranp.display import html_table
from ranp.errors import IntegrityError, UsageError
from ranp.files import json_sha256, read_sealed_json, write_sealed_json
from ranp.graph import (
    Alive,
    ChannelGraph,
    ExampleInput,
    Inputs,
    TensorShape,
    build_graph,
    shape_difference,
    shapes_fingerprint,
    tensor_shapes,
    unwrap,
)
from ranp.schemas import validate
from ranp.slimming.slim import Init, slim_model
from ranp.slimming.weights import mark

_SCHEMA = 1


@dataclass(frozen=True)
class KeptLayer:
    """A layer of the full network: how many neurons it has, and which of them are kept."""

    neurons: int
    kept: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Which neurons of which network are kept, and how that was decided.

    Attributes:
        layers: Every convolution and linear layer by module name.
        shapes: Shapes of the parameters and buffers of the full network, by name.
        inputs: The inputs that the network was traced with.
        method: The name of the method.
        settings: Sparsity, lambda, seed and everything else that the choice depends on.
        costs: Costs of the full and of the slim network.
        protect: Names and patterns of protected layers.
        switches: Attributes of the network that may be switched (see `ranp.graph.build_graph`).
        network: Name of the network on the command line, if it has one.
        versions: Versions of the software that made the plan.
    """

    layers: Mapping[str, KeptLayer]
    shapes: Mapping[str, tuple[int, ...]]
    inputs: Mapping[str, Any]
    method: str
    settings: Mapping[str, Any]
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    protect: tuple[str, ...] = ()
    switches: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    network: str | None = None
    versions: Mapping[str, str] = field(
        default_factory=lambda: {"ranp": __version__, "torch": str(torch.__version__)}
    )

    @classmethod
    def make(cls, graph: ChannelGraph, alive: Alive, **about: Any) -> Plan:
        """Return the plan of living channels; `about` are the other attributes of `Plan`."""
        kept = graph.kept(alive)
        return cls(
            layers={
                name: KeptLayer(len(layer), tuple(kept[name].tolist()))
                for name, layer in graph.layers.items()
            },
            shapes=graph.tensor_shapes,
            inputs=_inputs_to_json(graph.inputs),
            switches=graph.switches,
            **about,
        )

    def __repr__(self) -> str:
        kept = sum(len(layer.kept) for layer in self.layers.values())
        neurons = sum(layer.neurons for layer in self.layers.values())
        share = ""
        if self.costs:
            flops = self.costs["slim"]["gflops"] / (self.costs["full"]["gflops"] or 1)
            share = f", {100 * flops:.1f} % of the FLOPs"
        return f"Plan({self.method}: {kept:,} of {neurons:,} neurons{share})"

    def _repr_html_(self) -> str:
        rows = ((name, len(layer.kept), layer.neurons) for name, layer in self.layers.items())
        return html_table(repr(self), ("layer", "kept", "of"), rows)

    def summary(self) -> dict[str, Any]:
        """Return what commands print of it as JSON: costs, and how many neurons are kept."""
        return {
            "network": self.network,
            **{name: dict(totals) for name, totals in self.costs.items()},
            "method": self.method,
            "sparsity": self.settings.get("sparsity"),
            "feasible": True,
            "layers": [
                {"name": name, "neurons": layer.neurons, "kept": len(layer.kept)}
                for name, layer in self.layers.items()
            ],
            "settings": dict(self.settings),
        }

    @property
    def flops_ratio(self) -> float:
        """FLOPs of the full network over those of the slim one."""
        return self.costs["full"]["gflops"] / self.costs["slim"]["gflops"]

    @property
    def fingerprint(self) -> str:
        """A hash of the names and shapes of the full network's tensors."""
        return shapes_fingerprint(self.shapes)

    def apply(
        self,
        model: nn.Module,
        *,
        init: Init = "fresh",
        seed: int = 0,
        transfer: bool = False,
        example_input: ExampleInput | None = None,
        graph: ChannelGraph | None = None,
    ) -> nn.Module:
        """Build the slim network from an instance of the full one, which is not changed.

        Args:
            model: An instance of the network that the plan was made for.
            init: "fresh" (Glorot-normal), "orthogonal", or "keep" to copy the model's own weights.
            seed: Seed of fresh weights.
            transfer: Whether the first layer may take another number of input channels and the
                last layer have another number of classes (the paper's transfer between data sets).
            example_input: Input to trace the model with; the plan's own if None.
            graph: Channel graph of the model, if you have traced it already.

        Raises:
            IntegrityError: The plan is for another network; the message names the first difference.
        """
        model = unwrap(model)
        if not transfer:
            self.check_network(model)
        if graph is None:
            inputs = (
                self._example_input(model, transfer) if example_input is None else example_input
            )
            graph = build_graph(model, inputs, protect=self.protect, switches=self.switches)
        slim = slim_model(model, graph, self.alive(graph, transfer=transfer), init=init, seed=seed)
        mark(slim, plan=self.sha256)
        return slim

    def check_network(self, model: nn.Module) -> None:
        """Refuse a model that is not the plan's full network; name the first difference."""
        difference = shape_difference(self.shapes, tensor_shapes(model))
        if difference is not None:
            name, there, here = difference
            raise IntegrityError(
                f"the plan is for another network: '{name}' is {there} in the plan and {here} in "
                "the model"
            )

    def alive(self, graph: ChannelGraph, *, transfer: bool = False) -> Alive:
        """Return which channel classes of a graph of the plan's network are kept."""
        unknown = self.layers.keys() ^ graph.layers.keys()
        if unknown:
            name = next(n for n in [*self.layers, *graph.layers] if n in unknown)
            if f"{name}.weight" in graph.shapes and name in self.layers:
                raise IntegrityError(
                    f"plan and network disagree: the network's forward does not call '{name}'; "
                    "switch it as when the plan was made (deep supervision?), or make the plan "
                    "with switches"
                )
            where = "the plan" if name in self.layers else "the network"
            raise IntegrityError(f"plan and network disagree: only {where} has a layer '{name}'")
        alive = ~graph.removable
        decided: dict[int, tuple[bool, str]] = {}
        for name, layer in graph.layers.items():
            planned = self.layers[name]
            whole = len(planned.kept) == planned.neurons
            if planned.neurons != len(layer):
                if transfer and whole and not graph.removable[layer.neurons].any():
                    continue
                raise IntegrityError(
                    f"plan and network disagree: layer '{name}' has {planned.neurons} neurons in "
                    f"the plan and {len(layer)} in the network"
                )
            keep = np.zeros(len(layer), bool)
            keep[list(planned.kept)] = True
            for cls, stays in zip(layer.neurons.tolist(), keep.tolist(), strict=True):
                before, other = decided.setdefault(cls, (stays, name))
                if before != stays or (not stays and not graph.removable[cls]):
                    raise IntegrityError(
                        f"the plan contradicts itself: '{name}' and '{other}' are tied together, "
                        "and must keep the same neurons"
                    )
            alive[layer.neurons[keep]] = True
        return alive

    def _example_input(self, model: nn.Module, transfer: bool) -> ExampleInput:
        """Return what the plan was made with; in a transfer, with the model's input channels."""
        args, kwargs = _inputs_from_json(self.inputs, like=next(model.parameters()))
        if transfer and len(args) == 1 and isinstance(args[0], TensorShape):
            batch, channels, *space = args[0].shape
            convolutions = (m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd))
            return (batch, getattr(next(convolutions, None), "in_channels", channels), *space)
        return kwargs if kwargs else args

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, atomically and with a SHA-256."""
        write_sealed_json(path, self.to_dict())

    @property
    def sha256(self) -> str:
        """SHA-256 of the plan's JSON, by which its own file is sealed and others refer to it."""
        return json_sha256(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, to be stored inside another JSON file."""
        switches = {name: list(values) for name, values in self.switches.items()}
        return {
            "schema": _SCHEMA,
            "kind": "plan",
            "method": self.method,
            "network": self.network,
            "settings": dict(self.settings),
            "costs": {name: dict(totals) for name, totals in self.costs.items()},
            "versions": dict(self.versions),
            "protect": list(self.protect),
            **({"switches": switches} if switches else {}),  # plans of earlier versions had none
            "inputs": dict(self.inputs),
            "layers": [
                {"name": name, "neurons": layer.neurons, "kept": list(layer.kept)}
                for name, layer in self.layers.items()
            ],
            "shapes": [[name, list(shape)] for name, shape in self.shapes.items()],
        }

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan; refuse files that were changed or are not plans."""
        return cls.from_dict(read_sealed_json(path, "plan"), f"'{path}'")

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "the mapping") -> Plan:
        """Build a plan from what `to_dict` returned, read from some source; refuse others."""
        validate(content, "plan", source)
        return cls(
            layers={
                layer["name"]: KeptLayer(layer["neurons"], tuple(layer["kept"]))
                for layer in content["layers"]
            },
            shapes={name: tuple(shape) for name, shape in content["shapes"]},
            inputs=content["inputs"],
            method=content["method"],
            settings=content["settings"],
            costs=content["costs"],
            protect=tuple(content["protect"]),
            switches={k: tuple(v) for k, v in content.get("switches", {}).items()},
            network=content["network"],
            versions=content["versions"],
        )


def _inputs_to_json(inputs: Inputs) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, TensorShape):
            dtype = str(value.dtype).removeprefix("torch.")
            return {"tensor": list(value.shape), "dtype": dtype}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        if isinstance(value, Mapping):
            return {"mapping": {str(key): plain(item) for key, item in value.items()}}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise UsageError(
            f"an example input of type {type(value).__name__} cannot be stored in a plan; "
            "give tensors, numbers and texts"
        )

    return {
        "args": [plain(value) for value in inputs.args],
        "kwargs": {name: plain(value) for name, value in inputs.kwargs.items()},
    }


def _inputs_from_json(
    stored: Mapping[str, Any], like: torch.Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the stored inputs, on the device and with the precision of the model they are for."""

    def parse(value: Any) -> Any:
        if isinstance(value, Mapping) and "tensor" in value:
            dtype = getattr(torch, value["dtype"])
            dtype = like.dtype if dtype.is_floating_point else dtype
            return TensorShape(tuple(value["tensor"]), dtype, like.device)
        if isinstance(value, Mapping):
            return {key: parse(item) for key, item in value["mapping"].items()}
        return [parse(item) for item in value] if isinstance(value, list) else value

    args = tuple(parse(value) for value in stored["args"])
    return args, {name: parse(value) for name, value in stored["kwargs"].items()}
