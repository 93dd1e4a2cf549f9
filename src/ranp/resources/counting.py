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
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import nn

from ranp.errors import UsageError
from ranp.graph import Alive, ChannelGraph, ModuleCall, measure, unwrap

Convention = Literal["paper", "appendix", "macs"]
CONVENTIONS: tuple[Convention, ...] = ("paper", "appendix", "macs")

_BYTES = 4  # the paper's tables are for float32
_MIB = 2**20

_Conv = nn.modules.conv._ConvNd
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
        return self.parameters * _BYTES / _MIB

    @property
    def memory_mb(self) -> float:
        """Output elements of all leaf modules x 4 bytes / 2^20."""
        return sum(layer.activations for layer in self.layers) * _BYTES / _MIB

    @property
    def neurons(self) -> int:
        """Output channels of all convolutions and linear layers."""
        return sum(layer.neurons for layer in self.layers)

    def totals(self) -> dict[str, float | int]:
        """The totals as plain numbers."""
        return {
            "gflops": self.gflops,
            "param_mb": self.param_mb,
            "memory_mb": self.memory_mb,
            "neurons": self.neurons,
        }

    def to_dict(self) -> dict[str, Any]:
        """Totals and layers as plain values, for JSON."""
        return {
            **self.totals(),
            "convention": self.convention,
            "not_counted": list(self.not_counted),
            "layers": [asdict(layer) for layer in self.layers],
        }


def count(
    model: nn.Module,
    graph: ChannelGraph,
    alive: Alive | None = None,
    *,
    convention: Convention = "paper",
) -> Costs:
    """Counts what a network costs.

    Args:
        model: The full network.
        graph: Its channel graph.
        alive: Which channel classes live; all if not given. The result is what counting the slim
            network itself would give.
        convention: How operations are counted: "paper", "appendix" or "macs".
    """
    if convention not in CONVENTIONS:
        raise UsageError(f"unknown convention '{convention}': use paper, appendix or macs")
    model = unwrap(model)
    alive = graph.all_alive() if alive is None else alive
    modules = dict(model.named_modules())
    kinds: dict[str, str] = {}
    flops: dict[str, int] = {}
    activations: dict[str, int] = {}
    not_counted: dict[str, None] = {}
    for call in graph.calls:
        kinds.setdefault(call.name, call.kind)
        activations[call.name] = activations.get(call.name, 0) + measure(call.output, alive)
        if convention != "macs":
            cost = _call_flops(modules[call.name], call, graph, alive, convention)
            if cost is None:
                not_counted[f"{call.name} ({call.kind})"] = None
            flops[call.name] = flops.get(call.name, 0) + (cost or 0)
    if convention == "macs":
        for contraction in graph.contractions:
            name = contraction.module
            kinds.setdefault(name, type(modules[name]).__name__)
            flops[name] = flops.get(name, 0) + measure(contraction.extent, alive)
    parameters = _parameters(model, graph, alive)
    neurons = {name: int(alive[layer.neurons].sum()) for name, layer in graph.layers.items()}
    names = dict.fromkeys([*kinds, *parameters, *neurons])
    return Costs(
        convention,
        tuple(
            LayerCost(
                name,
                kinds.get(name) or _kind(modules, name),
                neurons.get(name, 0),
                flops.get(name, 0),
                parameters.get(name, 0),
                activations.get(name, 0),
            )
            for name in names
        ),
        tuple(not_counted),
    )


def _kind(modules: dict[str, nn.Module], name: str) -> str:
    return type(modules[name]).__name__ if name in modules else "function"


def _parameters(model: nn.Module, graph: ChannelGraph, alive: Alive) -> dict[str, int]:
    """Living parameters by owning module; those of a parametrization belong to its module."""
    result: dict[str, int] = {}
    for name, tensor in model.named_parameters():
        module, parametrized, _ = name.partition(".parametrizations.")
        owner = module if parametrized else name.rpartition(".")[0]
        pairs = zip(tensor.shape, graph.tensors[name], strict=True)
        extent = tuple(int(size) if classes is None else classes for size, classes in pairs)
        result[owner] = result.get(owner, 0) + measure(extent, alive)
    return result


def _call_flops(
    module: nn.Module, call: ModuleCall, graph: ChannelGraph, alive: Alive, convention: Convention
) -> int | None:
    """Operations of one call of a leaf module; None if there is no formula for it."""
    out = measure(call.output, alive)
    if isinstance(module, (_Conv, nn.Linear)):
        bias = int(module.bias is not None)
        layer = graph.layers[call.name]
        inputs = int(alive[layer.inputs].sum())
        if isinstance(module, nn.Linear):
            return out * (2 * inputs - 1 + bias)
        groups = inputs if layer.follows else layer.groups
        products = inputs // groups * math.prod(module.kernel_size)
        return out * (products + bias if convention == "paper" else 2 * products - 1 + bias)
    if isinstance(module, _NORMS):
        return 4 * out
    if isinstance(module, _AVERAGE_POOLS):
        return out * (_volume(module, module.kernel_size) + 1)
    if isinstance(module, _ADAPTIVE_AVERAGE_POOLS):
        return out * (measure(call.inputs, alive) // max(out, 1) + 1)
    if isinstance(module, (nn.Softmax, nn.LogSoftmax, nn.Softmax2d)):
        batch, channels = call.output[:2]
        assert isinstance(batch, int)
        return batch * (3 * measure((channels,), alive) - 1)
    free = isinstance(module, nn.Identity) or type(module).__module__ in _FREE
    return 0 if free or any(c.__module__ in _FREE for c in type(module).__mro__) else None


def _volume(module: nn.Module, kernel: int | tuple[int, ...]) -> int:
    """The volume of a kernel that may be given by one number for all dimensions."""
    dimensions = int(type(module).__name__.rstrip("d")[-1])
    return math.prod(kernel) if isinstance(kernel, tuple) else kernel**dimensions
