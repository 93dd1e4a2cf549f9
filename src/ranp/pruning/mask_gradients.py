"""Eq. 2: the gradient of the loss with respect to a mask on every weight.

At c = 1, dL(c * w)/dc = (dL/dw) * w. So there are no masks: a hook takes each weight's gradient
the moment autograd has it, multiplies it with the weight in place, adds up what is needed per
neuron, and frees it. Gradients of different layers are never alive together, so scoring needs
less memory than a training step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ranp.errors import IntegrityError
from ranp.pruning.weights import LayerWeights

PER_WEIGHT = ("abs", "signed")
"""Statistics that are kept for every single weight: for the maximum, and for SNIP."""


class MaskGradients:
    """Accumulates statistics of mask gradients over batches.

    Attributes:
        fan_in: Weights per neuron, by layer.
        sums: By statistic and layer, a float64 sum per neuron over the batches so far.
        weight_sums: Where asked for, the same per single weight, in the weight's own precision.
    """

    def __init__(self, weights: LayerWeights, statistics: Collection[str] = ()) -> None:
        """Starts with no batches.

        Args:
            weights: Of the model to score.
            statistics: Those beyond `mpmg` and `mnmg`: "abs" and "signed" are kept per weight,
                "grasp" per neuron and comes in through `add`.
        """
        self._weights = weights
        self._layers_of: dict[nn.Parameter, list[str]] = {}
        for name, leaf in weights.leaves.items():
            self._layers_of.setdefault(leaf, []).append(name)
        self.fan_in = weights.fan_in()
        self.sums = {
            statistic: {n: torch.zeros(w, dtype=torch.float64) for n, w in weights.widths.items()}
            for statistic in ("mpmg", "mnmg", *(s for s in statistics if s == "grasp"))
        }
        self.weight_sums = {
            statistic: {
                name: torch.zeros(width, self.fan_in[name], dtype=weights.precision)
                for name, width in weights.widths.items()
            }
            for statistic in PER_WEIGHT
            if statistic in statistics
        }
        self._number = 0
        self._ends = True
        self._noted: dict[tuple[str, str], Tensor] = {}
        self._computed: dict[str, Tensor] = {}
        self._watched: set[int] = set()

    @contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """One batch: what is noted inside counts only when all of it is there.

        Args:
            number: Of the batch, from 1; errors name it.
        """
        self._number = number
        try:
            with ExitStack() as stack:
                for leaf in self._layers_of:
                    stack.callback(leaf.register_post_accumulate_grad_hook(self._take).remove)
                stack.enter_context(self._weights.watching(self._watch))
                yield
            for (statistic, name), value in self._noted.items():
                total = (self.sums if statistic in self.sums else self.weight_sums)[statistic]
                total[name] += value.to(total[name])
        finally:
            self._noted, self._computed, self._watched = {}, {}, set()
            for parameter in self._weights.parameters:
                parameter.grad = None

    @contextmanager
    def part(self, *, ends: bool) -> Iterator[None]:
        """A part of a batch.

        Args:
            ends: Whether magnitudes are taken of the gradient up to here. If not, it goes on in
                the next part.
        """
        self._ends = ends
        self._watched = set()
        with parametrize.cached():
            yield
        if ends:
            for leaf in self._layers_of:  # those that this part did not reach, but one before did
                self._take(leaf)
            for name, g in self._computed.items():
                self._note([name], g)
            self._computed = {}

    def add(self, statistic: str, values: Mapping[str, Tensor]) -> None:
        """Adds a statistic per neuron that was computed elsewhere for a batch."""
        for name, value in values.items():
            self._check_finite(name, value)
            self.sums[statistic][name] += value

    def _take(self, weight: nn.Parameter) -> None:
        """Turns a parameter's gradient into mask gradients once it is complete."""
        if not self._ends or weight.grad is None:
            return
        gradient, weight.grad = weight.grad, None
        g = gradient.to(self._weights.precision).mul_(weight.detach())
        self._note(self._layers_of[weight], g)

    def _watch(self, name: str, weight: Tensor) -> None:
        """Asks for the gradient of a computed weight, once for each that is computed."""
        if id(weight) in self._watched or not weight.requires_grad:
            return
        self._watched.add(id(weight))
        w = weight.detach()  # not the weight itself: its hook would keep it alive

        def gather(gradient: Tensor) -> None:
            g = gradient.to(self._weights.precision) * w
            self._computed[name] = self._computed[name] + g if name in self._computed else g

        weight.register_hook(gather)

    def _note(self, names: Sequence[str], g: Tensor) -> None:
        """Adds what is needed of g_uv = (dL/dw_uv) w_uv, for layers of one weight.

        The magnitudes take the place of g: a tensor more costs more time than all the sums.
        """
        self._sum_up("mnmg", "signed", names, g)
        self._sum_up("mpmg", "abs", names, g.abs() if "signed" in self.weight_sums else g.abs_())
        for name in names:
            if ("mpmg", name) in self._noted:
                self._check_finite(name, self._noted["mpmg", name])

    def _sum_up(self, statistic: str, per_weight: str, names: Sequence[str], g: Tensor) -> None:
        for name in names:
            rows = self._weights.rows(name, g)
            if rows is None:
                continue
            self._add_to_noted(statistic, name, rows.sum(1))
            if per_weight in self.weight_sums:
                self._add_to_noted(per_weight, name, rows)

    def _add_to_noted(self, statistic: str, name: str, values: Tensor) -> None:
        before = self._noted.get((statistic, name))
        self._noted[statistic, name] = values if before is None else before + values

    def _check_finite(self, name: str, values: Tensor) -> None:
        if not torch.isfinite(values).all():
            raise IntegrityError(
                f"the gradient of layer '{name}' is not finite in batch {self._number}; "
                "look at that batch, at the loss, and at the precision"
            )
