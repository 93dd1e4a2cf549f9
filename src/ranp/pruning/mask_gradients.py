"""Eq. 2: the gradient of the loss with respect to a mask on every weight.

At c = 1, dL(c * w)/dc = (dL/dw) * w. So there are no masks: a hook takes each weight's gradient
the moment autograd has it, multiplies it with the weight in place, adds up what is needed per
neuron, and frees it. Gradients of different layers are never alive together, so scoring needs
less memory than a training step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ranp.errors import IntegrityError
from ranp.graph import ChannelGraph

PER_WEIGHT = ("abs", "signed")
"""Statistics that are kept for every single weight: for the maximum, and for SNIP."""


def by_neuron(weight: Tensor, module: nn.Module | None) -> Tensor:
    """A weight, or anything of its shape, as a matrix with a row per neuron."""
    if getattr(module, "transposed", False):
        groups = int(module.groups)  # type: ignore[union-attr, arg-type]
        inputs, outputs = weight.shape[:2]
        grid = weight.reshape(groups, inputs // groups, outputs, -1)
        return grid.transpose(1, 2).reshape(groups * outputs, -1)
    return weight.reshape(weight.shape[0], -1)


class MaskGradients:
    """Accumulates statistics of mask gradients over batches.

    Attributes:
        fan_in: Weights per neuron, by layer.
        sums: By statistic and layer, a float64 sum per neuron over the batches so far.
        weight_sums: Where asked for, the same per single weight.
    """

    def __init__(
        self, model: nn.Module, graph: ChannelGraph, statistics: Collection[str] = ()
    ) -> None:
        """Finds the weights of the layers.

        Args:
            model: The model to score.
            graph: Its channel graph.
            statistics: Those beyond `mpmg` and `mnmg`: "abs" and "signed" are kept per weight,
                all others per neuron and come in through `add`.
        """
        self._parameters = dict(model.named_parameters())
        self._modules = dict(model.named_modules())
        self._weights = {name: self._leaf(name) for name in graph.layers}
        self._widths = {name: len(layer) for name, layer in graph.layers.items()}
        self.fan_in = {name: self._weights_per_neuron(name) for name in graph.layers}
        self.sums = {
            statistic: {n: torch.zeros(w, dtype=torch.float64) for n, w in self._widths.items()}
            for statistic in ("mpmg", "mnmg", *(s for s in statistics if s == "grasp"))
        }
        self.weight_sums = {
            statistic: {n: torch.zeros(w, self.fan_in[n]) for n, w in self._widths.items()}
            for statistic in PER_WEIGHT
            if statistic in statistics
        }
        self._batch: dict[tuple[str, str], Tensor] = {}
        self._parts: dict[str, Tensor] = {}
        self._batch_number = 0
        self._last_part = True
        self._watched: set[str] = set()

    def _weights_per_neuron(self, name: str) -> int:
        weight = self._weights[name]
        if weight is None:
            weight = getattr(self._modules.get(name), "weight", None)
        return 1 if weight is None else weight.numel() // self._widths[name]

    def _leaf(self, name: str) -> nn.Parameter | None:
        """The parameter that is a layer's weight; None where the weight is computed."""
        return self._parameters.get(name, self._parameters.get(f"{name}.weight"))

    @property
    def scored(self) -> list[nn.Parameter]:
        """The parameters whose gradients are needed."""
        leaves = [weight for weight in self._weights.values() if weight is not None]
        computed = [
            parameter
            for name, weight in self._weights.items()
            if weight is None and name in self._modules
            for parameter in self._modules[name].parameters()
        ]
        return [*leaves, *computed]

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        """While inside, every backward pass is taken note of."""
        with ExitStack() as stack:
            for name, weight in self._weights.items():
                module = self._modules.get(name)
                if weight is not None:
                    hook = weight.register_post_accumulate_grad_hook(partial(self._take, name))
                    stack.callback(hook.remove)
                elif module is not None and hasattr(module, "weight"):
                    watch = partial(self._watch_computed, name)
                    stack.callback(module.register_forward_pre_hook(watch).remove)
            yield

    def _watch_computed(self, name: str, module: nn.Module, inputs: object) -> None:
        """Asks for the gradient of a weight that is computed (weight norm, spectral norm)."""
        weight = module.weight
        if isinstance(weight, Tensor) and weight.requires_grad and name not in self._watched:
            self._watched.add(name)
            weight.register_hook(lambda grad: self._gather(name, grad * weight.detach()))

    def _gather(self, name: str, mask_gradient: Tensor) -> None:
        """Adds up the parts of a batch, which a leaf's gradient does by itself."""
        self._parts[name] = self._parts.get(name, 0) + mask_gradient
        if self._last_part:
            self._add(name, self._parts.pop(name))

    def _take(self, name: str, weight: nn.Parameter) -> None:
        if not self._last_part or weight.grad is None:
            return
        gradient, weight.grad = weight.grad, None
        self._add(name, gradient.mul_(weight.detach()))

    def _add(self, name: str, mask_gradient: Tensor) -> None:
        """Notes g = (dL/dw) w of one layer for the batch under way."""
        g = by_neuron(mask_gradient, self._modules.get(name))
        g = g.float() if g.dtype in (torch.float16, torch.bfloat16) else g
        if g.shape != (self._widths[name], self.fan_in[name]):
            return  # several layers are cut from one weight: their neurons are pinned anyway
        self._note("mnmg", name, g.sum(1))
        if "signed" in self.weight_sums:
            self._note("signed", name, g)
        g = g.abs()
        if "abs" in self.weight_sums:
            self._note("abs", name, g)
        total = g.sum(1)
        if not torch.isfinite(total).all():
            raise IntegrityError(
                f"the gradient of layer '{name}' is not finite in batch {self._batch_number}; "
                "look at that batch, at the loss, and at the precision"
            )
        self._note("mpmg", name, total)

    def _note(self, statistic: str, name: str, value: Tensor) -> None:
        self._batch[statistic, name] = self._batch.get((statistic, name), 0) + value

    @contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """One batch: what is noted inside counts only when all of it is there."""
        self._batch, self._parts, self._batch_number = {}, {}, number
        try:
            with self._hooks():
                yield
            for (statistic, name), value in self._batch.items():
                total = (self.sums if statistic in self.sums else self.weight_sums)[statistic]
                total[name] += value.to(total[name])
        finally:
            self._batch, self._parts = {}, {}
            for parameter in self.scored:
                parameter.grad = None

    def add(self, statistic: str, values: Mapping[str, Tensor]) -> None:
        """Adds a statistic per neuron that was computed elsewhere for the last batch."""
        for name, value in values.items():
            self.sums[statistic][name] += value

    @contextmanager
    def part(self, last: bool = True) -> Iterator[None]:
        """A part of a batch; magnitudes are taken of the whole batch's gradient only."""
        self._last_part = last
        self._watched = set()
        with parametrize.cached():
            yield
