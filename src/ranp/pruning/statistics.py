"""What scoring gathers of a network: once, in every batch, or from every gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ranp.graph import ChannelGraph
from ranp.pruning.batches import Forward, Part
from ranp.pruning.scores import ByLayer
from ranp.pruning.weights import LayerWeights


@dataclass(frozen=True)
class Once:
    """A statistic of the weights alone: no data needed.

    Attributes:
        name: Key of the statistic in `Scores`.
        compute: Returns one number per neuron, by layer.
    """

    name: str
    compute: Callable[[nn.Module, ChannelGraph, LayerWeights], ByLayer]


@dataclass(frozen=True)
class PerBatch:
    """A statistic that runs its own passes over every batch.

    Attributes:
        name: Key of the statistic in `Scores`.
        compute: Returns one number per neuron, by layer, for a batch given in parts that fit into
            memory.
    """

    name: str
    compute: Callable[[nn.Module, LayerWeights, Sequence[Part], Forward], ByLayer]


@dataclass(frozen=True)
class PerGradient:
    """A statistic of the mask gradients g_uv (Eq. 2) of a batch.

    Attributes:
        name: Key of the statistic in `Scores`.
        compute: Maps the mask gradients of a layer, a row per neuron, to one number per neuron, or
            per weight.
        magnitude: Whether it is computed from |g_uv|, not from g_uv.
        per_weight: Whether it returns a matrix like its argument, not a number per neuron.
    """

    name: str
    compute: Callable[[Tensor], Tensor]
    magnitude: bool = False
    per_weight: bool = False


Statistic = Once | PerBatch | PerGradient
