"""What makes a neuron important; a new criterion is a function and a `Criterion`.

Beside the paper's (`ranp.pruning.equations`) those of other papers, per neuron, for comparison:
SNIP, magnitude, SynFlow, GraSP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from ranp.graph import ChannelGraph
from ranp.graph.operation import tensors_in
from ranp.graph.surgery import training_mode
from ranp.pruning.batches import Forward, Part, checked_loss
from ranp.pruning.equations import ABS, MNMG, MPMG, SIGNED, Reduction, mnmg, mpmg
from ranp.pruning.scores import NeuronScores, Scores
from ranp.pruning.statistics import Once, PerBatch, Statistic
from ranp.pruning.weights import LayerWeights, neuron_sums

Gradients = dict[str, Tensor]
Differentiate = Callable[[Tensor, Gradients], Gradients]


@dataclass(frozen=True)
class Criterion:
    """A measure of the importance of neurons.

    Attributes:
        name: Name of the criterion.
        importance: Computes the importance of every neuron from scores.
        statistics: What scoring must gather for it.
        reduction: f of Eq. 6 and 7, over a neuron's weights, where there is a choice.
    """

    name: str
    importance: Callable[[Scores], NeuronScores]
    statistics: tuple[Statistic, ...]
    reduction: Reduction | None = None

    @property
    def label(self) -> str:
        """Name and reduction, such as "mpmg-sum"."""
        return self.name if self.reduction is None else f"{self.name}-{self.reduction}"


def magnitude(model: nn.Module, graph: ChannelGraph, weights: LayerWeights) -> dict[str, Tensor]:
    """Return the L1 norm of each neuron's weights (Li et al., 2017): sum_v |w_uv|."""
    return neuron_sums(weights, ((name, w.abs()) for name, w in weights.effective().items()))


def grasp(
    model: nn.Module, weights: LayerWeights, parts: Sequence[Part], forward: Forward
) -> dict[str, Tensor]:
    """Return what each neuron adds to the flow of gradients: GraSP (Wang et al., 2020).

    A weight's score is w * (H g), the Hessian of the loss times its gradient: removing the weight
    changes |g|^2 by about -2 w (H g). The largest are kept, as there. It is summed over the
    neuron's weights.

    Args:
        model: Model to score.
        weights: Weights of its layers.
        parts: The batch, in parts that fit into memory; their losses add up to that of the batch.
        forward: `forward(model, batch)` -> scalar loss.
    """

    def over_parts(differentiate: Differentiate) -> Gradients:
        total: Gradients = {}
        for batch, share in parts:
            loss = partial(_loss, model, batch, forward, share)
            for name, value in _differentiate_weights(weights, loss, differentiate).items():
                total[name] = total[name] + value if name in total else value
        return total

    def hessian_product(loss: Tensor, used: Gradients) -> Gradients:
        first = _gradients(loss, used, create_graph=True)
        flow = torch.stack([(first[name] * g[name]).sum() for name in first]).sum()
        return _gradients(flow, used)

    with torch.random.fork_rng():  # both passes meet the same random numbers
        g = over_parts(_gradients)
    product = over_parts(hessian_product)
    w = weights.effective()
    return neuron_sums(weights, ((name, w[name] * h) for name, h in product.items()))


def synflow(model: nn.Module, graph: ChannelGraph, weights: LayerWeights) -> dict[str, Tensor]:
    """Return w dR/dw of each neuron: SynFlow (Tanaka et al., 2020).

    R is the sum of outputs with all weights made positive.
    The input is all ones and the mode is eval, so no data are needed. One shot, not iterated.
    """

    def flow() -> Tensor:
        args, kwargs = pytree.tree_map_only(
            Tensor,
            lambda x: torch.ones_like(x) if x.is_floating_point() else x,
            graph.inputs.materialize(),
        )
        outputs = [t for t in tensors_in(model(*args, **kwargs)) if t.is_floating_point()]
        return torch.stack([t.double().sum() for t in outputs]).sum()

    with training_mode(model, training=False), _absolute_weights(model):
        w = weights.effective()
        gradients = _differentiate_weights(weights, flow, _gradients)
        return neuron_sums(weights, ((name, w[name] * d) for name, d in gradients.items()))


def _differentiate_weights(
    weights: LayerWeights, value: Callable[[], Tensor], differentiate: Differentiate
) -> Gradients:
    """Differentiate a value with respect to the weights, computed ones as they are used."""
    used: dict[str, Tensor] = dict(weights.leaves)
    with weights.observe_computed(used.__setitem__), parametrize.cached():
        return differentiate(value(), used)


def _gradients(value: Tensor, used: Gradients, *, create_graph: bool = False) -> Gradients:
    found = torch.autograd.grad(
        value, list(used.values()), create_graph=create_graph, allow_unused=True
    )
    return {name: d for name, d in zip(used, found, strict=True) if d is not None}


def _loss(model: nn.Module, batch: Any, forward: Forward, share: float) -> Tensor:
    return checked_loss(forward(model, batch)) * share


@contextmanager
def _absolute_weights(model: nn.Module) -> Iterator[None]:
    """Replace all parameters by their magnitudes, and restore them."""
    before = [(p, p.data) for p in model.parameters()]
    try:
        for parameter, data in before:
            parameter.data = data.abs()
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


MAGNITUDE = Once("magnitude", magnitude)

DEFAULT_STATISTICS: tuple[Statistic, ...] = (MPMG, MNMG, MAGNITUDE)
"""Gathered whatever the method, so that the same scores serve most methods."""


def _of_mask_gradients(name: str, f: Reduction) -> Criterion:
    measure, of_sums, of_weights = {"mpmg": (mpmg, MPMG, ABS), "mnmg": (mnmg, MNMG, SIGNED)}[name]
    needed = of_weights if f == "max" else of_sums
    return Criterion(name, lambda scores: measure(scores, f), (needed,), f)


def _of_statistic(statistic: Statistic) -> Criterion:
    name = statistic.name
    return Criterion(name, lambda scores: scores.average(name), (statistic,))


CRITERIA = {
    criterion.label: criterion
    for criterion in (
        *(_of_mask_gradients(name, f) for name in ("mpmg", "mnmg") for f in ("sum", "mean", "max")),
        Criterion("snip", mpmg, (MPMG,)),
        _of_statistic(MAGNITUDE),
        _of_statistic(Once("synflow", synflow)),
        _of_statistic(PerBatch("grasp", grasp)),
    )
}
"""The criteria of the table of methods, by label."""
