"""Where the layers of a network have their weights, and how a weight falls into neurons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ranp.graph import ChannelGraph, ClassArray

WeightCallback = Callable[[str, Tensor], None]


class LayerWeights:
    """The weights of a network's layers.

    Attributes:
        leaves: Weights that are parameters, by layer; tied layers have the same one.
        computed: Modules whose weight is made of other parameters (weight norm, spectral norm and
            other parametrizations), by layer.
        widths: Neurons, by layer.
        prunable: Names of the layers that could lose neurons.
    """

    def __init__(self, model: nn.Module, graph: ChannelGraph) -> None:
        parameters = dict(model.named_parameters(remove_duplicate=False))
        self._modules = dict(model.named_modules())
        self.widths = {name: len(layer) for name, layer in graph.layers.items()}
        self.prunable = [
            n for n, layer in graph.layers.items() if graph.removable[layer.neurons].any()
        ]
        self.leaves: dict[str, nn.Parameter] = {}
        self.computed: dict[str, nn.Module] = {}
        self._transposed: dict[str, int] = {}  # groups, of those with a column per neuron
        for name, layer in graph.layers.items():
            module = self._modules.get(name)
            leaf = parameters.get(name, parameters.get(f"{name}.weight"))
            if leaf is not None:
                self.leaves[name] = leaf
            elif module is not None and isinstance(getattr(module, "weight", None), Tensor):
                self.computed[name] = module
            if getattr(module, "transposed", False):
                self._transposed[name] = layer.groups
            elif name in parameters and _is_column(graph.tensors.get(name), layer.neurons):
                self._transposed[name] = 1

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters that the weights are or are made of, each once."""
        computed = (p for module in self.computed.values() for p in module.parameters())
        return list(dict.fromkeys([*self.leaves.values(), *computed]))

    def effective(self) -> dict[str, Tensor]:
        """Return the weights as they are now, by layer."""
        computed = {name: torch.as_tensor(m.weight) for name, m in self.computed.items()}
        everything = {**self.leaves, **computed}
        return {name: weight.detach() for name, weight in everything.items()}

    def fan_in(self) -> dict[str, int]:
        """Return the number of weights per neuron, by layer."""
        effective = self.effective()
        rows = {n: self.rows(n, effective[n]) if n in effective else None for n in self.widths}
        return {name: 1 if r is None else r.shape[1] for name, r in rows.items()}

    @property
    def precision(self) -> torch.dtype:
        """What to compute in: as the weights have it, but at least float32."""
        result = torch.float32
        for parameter in self.parameters:
            result = torch.promote_types(result, parameter.dtype)
        return result

    def rows(self, name: str, weight: Tensor) -> Tensor | None:
        """Return a layer's weight, or anything of its shape, as a matrix with a row per neuron.

        None where several layers are cut from one parameter; their neurons are pinned anyway.
        """
        if name in self._transposed:
            groups = self._transposed[name]
            inputs, outputs = weight.shape[:2]
            grid = weight.reshape(groups, inputs // groups, outputs, -1)
            weight = grid.transpose(1, 2).reshape(groups * outputs, -1)
        return weight.flatten(1) if weight.shape[0] == self.widths[name] else None

    @contextmanager
    def observe_computed(self, callback: WeightCallback) -> Iterator[None]:
        """Call `callback` with every computed weight when its layer is about to use it.

        Inside of `torch.nn.utils.parametrize.cached()` that is one weight for each pass; without,
        a parametrization computes another whenever it is asked.
        """

        def show(name: str, module: nn.Module, inputs: object) -> None:
            weight = module.weight
            assert isinstance(weight, Tensor)
            callback(name, weight)

        with ExitStack() as stack:
            for name, module in self.computed.items():
                stack.enter_context(module.register_forward_pre_hook(partial(show, name)))
            yield


def _is_column(classes: tuple[ClassArray | None, ...] | None, neurons: ClassArray) -> bool:
    """Return whether a raw parameter has a layer's neurons along its second dimension."""
    if classes is None or len(classes) < 2:
        return False
    first, second = (c is not None and c.tolist() == neurons.tolist() for c in classes[:2])
    return second and not first


def neuron_sums(weights: LayerWeights, scores: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Add up what each weight scores over every neuron; layers without scores get zeros.

    Scores come layer by layer, so that they are not all in memory at once.
    """
    result = {n: torch.zeros(width, dtype=torch.float64) for n, width in weights.widths.items()}
    for name, score in scores:
        rows = weights.rows(name, score)
        if rows is not None:
            result[name] = rows.to(weights.precision).sum(1).double().cpu()
    return result
