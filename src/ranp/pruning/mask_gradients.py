"""Gathers the mask gradients of Eq. 2 while autograd runs, without masks.

A post-accumulate-grad hook takes each weight's gradient the moment autograd has it, multiplies it
with the weight in place, adds up what is needed per neuron, and frees it. Gradients of different
layers are never alive together, so scoring needs less memory than a training step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ranp.errors import IntegrityError, first_of
from ranp.pruning.equations import mask_gradient_
from ranp.pruning.statistics import PerBatch, PerGradient, Statistic
from ranp.pruning.weights import LayerWeights


class MaskGradients:
    """Accumulates statistics of mask gradients over batches.

    Attributes:
        fan_in: Weights per neuron, by layer.
        sums: By statistic and layer, a float64 sum per neuron over the batches so far.
        weight_sums: Where asked for, the same per single weight, in the weight's own precision.
    """

    def __init__(self, weights: LayerWeights, statistics: Sequence[Statistic]) -> None:
        self._weights = weights
        self._statistics = [each for each in statistics if isinstance(each, PerGradient)]
        self._layers_of: dict[nn.Parameter, list[str]] = {}
        for name, leaf in weights.leaves.items():
            self._layers_of.setdefault(leaf, []).append(name)
        self.fan_in = weights.fan_in()
        self.sums = {
            each.name: {n: torch.zeros(w, dtype=torch.float64) for n, w in weights.widths.items()}
            for each in statistics
            if isinstance(each, PerBatch) or (isinstance(each, PerGradient) and not each.per_weight)
        }
        self.weight_sums = {
            each.name: {
                name: torch.zeros(width, self.fan_in[name], dtype=weights.precision)
                for name, width in weights.widths.items()
            }
            for each in self._statistics
            if each.per_weight
        }
        self._number = 0
        self._ends = True
        self._pending: dict[tuple[str, str], Tensor] = {}
        self._computed: dict[str, Tensor] = {}
        self._watched: set[int] = set()

    @contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """Gather one batch: what is gathered inside counts only when the batch is complete."""
        self._number = number
        try:
            with ExitStack() as stack:
                for leaf in self._layers_of:
                    hook = leaf.register_post_accumulate_grad_hook(self._take_gradient)
                    stack.enter_context(hook)
                stack.enter_context(self._weights.observe_computed(self._watch_computed))
                yield
            self._check_signal()
            for (statistic, name), value in self._pending.items():
                total = (self.sums if statistic in self.sums else self.weight_sums)[statistic]
                total[name] += value.to(total[name])
        finally:
            self._pending, self._computed, self._watched = {}, {}, set()
            for parameter in self._weights.parameters:
                parameter.grad = None

    @contextmanager
    def part(self, *, ends: bool) -> Iterator[None]:
        """Gather a part of a batch; unless it `ends` there, the gradient goes on in the next."""
        self._ends = ends
        self._watched = set()
        with parametrize.cached():
            yield
        if ends:
            for leaf in self._layers_of:  # those that this part did not reach, but one before did
                self._take_gradient(leaf)
            for name, g in self._computed.items():
                self._accumulate([name], g)
            self._computed = {}

    def add(self, statistic: str, values: Mapping[str, Tensor]) -> None:
        """Add a statistic per neuron that was computed elsewhere for a batch."""
        for name, value in values.items():
            self._check_finite(name, value)
            self.sums[statistic][name] += value

    def _take_gradient(self, weight: nn.Parameter) -> None:
        """Turn a parameter's gradient into mask gradients once it is complete."""
        if not self._ends or weight.grad is None:
            return
        gradient, weight.grad = weight.grad, None
        g = mask_gradient_(gradient.to(self._weights.precision), weight.detach())
        self._accumulate(self._layers_of[weight], g)

    def _watch_computed(self, name: str, weight: Tensor) -> None:
        """Register a hook on a computed weight, once for each tensor that is computed."""
        if id(weight) in self._watched or not weight.requires_grad:
            return
        self._watched.add(id(weight))
        w = weight.detach()  # not the weight itself: its hook would keep it alive

        def gather(gradient: Tensor) -> None:
            g = mask_gradient_(gradient.to(self._weights.precision, copy=True), w)
            self._computed[name] = self._computed[name] + g if name in self._computed else g

        weight.register_hook(gather)

    def _accumulate(self, names: Sequence[str], g: Tensor) -> None:
        """Add the statistics of the mask gradients g of a weight, for all layers that share it.

        The magnitudes take the place of g: a tensor more costs more time than all the sums.
        """
        for magnitude in (False, True):
            if magnitude:
                g = g.abs_()
            for name in names:
                rows = self._weights.rows(name, g)
                if rows is not None:
                    self._accumulate_rows(name, rows, magnitude)

    def _accumulate_rows(self, name: str, rows: Tensor, magnitude: bool) -> None:
        for statistic in self._statistics:
            if statistic.magnitude != magnitude:
                continue
            values = statistic.compute(rows)
            if not magnitude and values.data_ptr() == rows.data_ptr():
                values = values.clone()  # or it would turn into magnitudes afterwards
            key = (statistic.name, name)
            self._pending[key] = self._pending[key] + values if key in self._pending else values
            if magnitude and not statistic.per_weight:
                self._check_finite(name, self._pending[key])

    def _check_signal(self) -> None:
        """Refuse a batch whose gradients are zero in all layers that could lose neurons."""
        names = self._weights.prunable
        gathered = [v for (_, name), v in self._pending.items() if name in names]
        if not names or any(bool(values.any()) for values in gathered):
            return
        shown = first_of([f"'{name}'" for name in names], 3)
        raise IntegrityError(
            f"batch {self._number} gives no signal: the gradients of all layers that could lose "
            f"neurons ({shown}) are zero; check that the loss depends on the output, that "
            "the batch has samples and labels, and that the network is not dead"
        )

    def _check_finite(self, name: str, values: Tensor) -> None:
        if not torch.isfinite(values).all():
            raise IntegrityError(
                f"the gradient of layer '{name}' is not finite in batch {self._number}; "
                "look at that batch, at the loss, and at the precision"
            )
