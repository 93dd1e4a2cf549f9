"""What a network costs: floating point operations, parameters, activation memory.

Everything is computed from the channel graph, for the full network or for any choice of living
channels, at any input size; nothing is allocated and nothing is run.

Three conventions, all for one forward pass at the traced batch size:

- `paper`: what the paper's tables hold. Per leaf module: a convolution, transposed or not, costs
  out_elements x (in_channels / groups x kernel_volume + has_bias), multiply-adds counted once; a
  linear layer 2 x in_features - 1 + has_bias per output element; normalisation 4 per element;
  average pooling kernel_volume + 1 per output element; softmax batch x (3 x channels - 1);
  activations, max pooling, dropout and interpolation nothing.
- `appendix`: the same with the formula of Appendix C for convolutions,
  out_elements x (2 x in_channels / groups x kernel_volume - 1 + has_bias).
- `macs`: multiply-adds of convolutions, linear layers, matrix products and attention, wherever
  they stand, in modules or in functional calls; half of what `torch.utils.flop_counter` reports.

Memory is, in all of them, the sum of the output elements of all leaf modules at 4 bytes, as in the
paper: functional calls (interpolation, concatenation, addition) are no modules and not counted.
What a training step really takes is in `ranp.resources.training_memory`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ranp.display import MIB
from ranp.errors import check_one_of
from ranp.graph import (
    Alive,
    ChannelGraph,
    Count,
    ExampleInput,
    ModuleCall,
    build_graph,
    measure,
    unwrap,
)
from ranp.graph.surgery import owner_of

Convention = Literal["paper", "appendix", "macs"]
CONVENTIONS: tuple[Convention, ...] = ("paper", "appendix", "macs")

_BYTES = 4  # the paper's tables are for float32
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_ADAPTIVE_AVERAGE_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_FREE = (
    nn.modules.activation.__name__,
    nn.modules.pooling.__name__,
    nn.modules.dropout.__name__,
    nn.modules.upsampling.__name__,
    nn.modules.padding.__name__,
    nn.modules.flatten.__name__,
    nn.modules.pixelshuffle.__name__,
    nn.modules.channelshuffle.__name__,
)


@dataclass(frozen=True)
class LayerCost:
    """The cost of one leaf module, over all its calls.

    Attributes:
        name: The module's name.
        kind: Its class.
        neurons: Output channels, for convolutions and linear layers; 0 for others.
        flops: Operations of a forward pass, by the convention of the whole.
        parameters: Number of its parameters; shared ones belong to their first owner.
        activations: Number of its output elements.
    """

    name: str
    kind: str
    neurons: int
    flops: int
    parameters: int
    activations: int

    def to_dict(self) -> dict[str, Any]:
        """Return the costs as plain values, in the units of `Costs.totals` too."""
        return {
            **asdict(self),
            "gflops": self.flops / 1e9,
            "param_mb": self.parameters * _BYTES / MIB,
            "memory_mb": self.activations * _BYTES / MIB,
        }


@dataclass(frozen=True)
class Costs:
    """The cost of a network, layer by layer and in total.

    Attributes:
        convention: How operations were counted.
        layers: One entry for every leaf module that is called or has parameters.
        not_counted: Modules whose operations the convention has no formula for.
    """

    convention: Convention
    layers: tuple[LayerCost, ...]
    not_counted: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"Costs({self.gflops:.4g} GFLOPs, {self.parameters:,} parameters, "
            f"{self.memory_mb:,.1f} MB of activations, {self.neurons:,} neurons)"
        )

    @property
    def gflops(self) -> float:
        """Operations / 1e9."""
        return sum(layer.flops for layer in self.layers) / 1e9

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def param_mb(self) -> float:
        """Parameters x 4 bytes / 2^20."""
        return self.parameters * _BYTES / MIB

    @property
    def memory_mb(self) -> float:
        """Output elements of all leaf modules x 4 bytes / 2^20."""
        return sum(layer.activations for layer in self.layers) * _BYTES / MIB

    @property
    def neurons(self) -> int:
        """Output channels of all convolutions and linear layers."""
        return sum(layer.neurons for layer in self.layers)

    def totals(self) -> dict[str, float | int]:
        """Return the totals as plain numbers."""
        return {
            "gflops": self.gflops,
            "param_mb": self.param_mb,
            "memory_mb": self.memory_mb,
            "neurons": self.neurons,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return totals and layers as plain values, for JSON."""
        return {
            **self.totals(),
            "convention": self.convention,
            "not_counted": list(self.not_counted),
            "layers": [layer.to_dict() for layer in self.layers],
        }


def count(
    model: nn.Module,
    graph: ChannelGraph | ExampleInput,
    alive: Alive | None = None,
    *,
    convention: Convention = "paper",
) -> Costs:
    """Count the FLOPs, parameters and activation memory of a network.

    Args:
        model: The full network.
        graph: Its channel graph, or an example input or shape to trace it with.
        alive: Channel classes to keep; all if None. The result equals that of counting the slim
            network itself.
        convention: How to count operations: "paper", "appendix" or "macs".
    """
    if not isinstance(graph, ChannelGraph):
        graph = build_graph(model, graph)
    alive = graph.all_alive() if alive is None else alive
    kinds, columns, not_counted = _count(model, graph, alive, convention)
    layers = (
        LayerCost(name, kind, *(int(column.get(name, 0)) for column in columns.values()))
        for name, kind in kinds.items()
    )
    return Costs(convention, tuple(layers), not_counted)


def count_choices(
    model: nn.Module, graph: ChannelGraph, choices: NDArray[np.bool_]
) -> dict[str, NDArray[np.int64]]:
    """Count what several slim networks cost, all at once, by the paper's convention.

    Returns:
        By column ("neurons", "flops", "parameters", "activations"), an array [modules, choices]
        for choices [classes, choices]; modules are in the order of `count(model, graph).layers`.
    """
    kinds, columns, _ = _count(model, graph, choices, "paper")
    each = choices.shape[1]
    return {
        key: np.stack([np.broadcast_to(column.get(name, 0), each) for name in kinds])
        for key, column in columns.items()
    }


def _count(
    model: nn.Module, graph: ChannelGraph, alive: NDArray[np.bool_], convention: Convention
) -> tuple[dict[str, str], dict[str, dict[str, Count]], tuple[str, ...]]:
    """Return classes of the counted modules, what each costs by column, and what has no formula."""
    check_one_of("convention", convention, CONVENTIONS)
    model = unwrap(model)
    modules = dict(model.named_modules())
    kinds: dict[str, str] = {}
    flops: dict[str, Count] = defaultdict(int)
    activations: dict[str, Count] = defaultdict(int)
    parameters: dict[str, Count] = defaultdict(int)
    not_counted: dict[str, None] = {}
    for call in graph.calls:
        kinds.setdefault(call.name, call.kind)
        activations[call.name] += measure(call.output, alive)
        if convention != "macs":
            cost = _operations(modules[call.name], call, graph, alive, convention)
            if cost is None:
                not_counted[f"{call.name} ({call.kind})"] = None
            flops[call.name] += 0 if cost is None else cost
    if convention == "macs":
        for contraction in graph.contractions:
            name = contraction.module
            kinds.setdefault(name, type(modules[name]).__name__)
            flops[name] += measure(contraction.extent, alive)
    for name, _ in model.named_parameters():
        parameters[owner_of(name)] += measure(graph.extent(name), alive)
    neurons: dict[str, Count] = {
        name: alive[layer.neurons].sum(axis=0) for name, layer in graph.layers.items()
    }
    for name in (*parameters, *neurons):
        kinds.setdefault(name, type(modules[name]).__name__ if name in modules else "function")
    columns = {
        "neurons": neurons,
        "flops": flops,
        "parameters": parameters,
        "activations": activations,
    }
    return kinds, columns, tuple(not_counted)


def _operations(
    module: nn.Module, call: ModuleCall, graph: ChannelGraph, alive: Alive, convention: Convention
) -> Count | None:
    """Return the operations of a traced call of a leaf module; None if there is no formula."""
    out = measure(call.output, alive)
    if isinstance(module, (nn.modules.conv._ConvNd, nn.Linear)):
        layer, bias = graph.layers[call.name], int(module.bias is not None)
        inputs = measure((layer.inputs,), alive)
        if isinstance(module, nn.Linear):
            return out * (2 * inputs - 1 + bias)
        # A depthwise convolution has as many groups as living inputs.
        products = 1 if layer.is_depthwise else inputs // layer.groups
        products = products * math.prod(module.kernel_size)
        return out * (2 * products - 1 + bias if convention == "appendix" else products + bias)
    if isinstance(module, _NORMS):
        return out * 4
    if isinstance(module, _AVERAGE_POOLS):
        return out * (_kernel_volume(module) + 1)
    if isinstance(module, _ADAPTIVE_AVERAGE_POOLS):
        return out * (measure(call.inputs, alive) // np.maximum(out, 1) + 1)
    if isinstance(module, (nn.Softmax, nn.LogSoftmax, nn.Softmax2d)):
        batch, channels = call.output[:2]
        return measure((batch,), alive) * (3 * measure((channels,), alive) - 1)
    is_free = isinstance(module, nn.Identity) or any(
        kind.__module__ in _FREE for kind in type(module).__mro__
    )
    return out * 0 if is_free else None


def _kernel_volume(pool: nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d) -> int:
    """Return the volume of a kernel given by one size per dimension or one size for all."""
    kernel = pool.kernel_size
    dimensions = int(type(pool).__name__.rstrip("d")[-1])
    return kernel**dimensions if isinstance(kernel, int) else math.prod(kernel)
