"""Algorithm 1, second half, and Algorithm 2: from scores to living channels, and how few."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
from torch import Tensor, nn

from ranp.errors import InfeasibleError, UsageError
from ranp.graph import Alive, ChannelGraph
from ranp.pruning.balance import balance
from ranp.pruning.coupling import (
    Bundle,
    Coupling,
    at_least,
    bundles,
    couple,
    in_multiples,
    share,
)
from ranp.pruning.identity import check_fingerprint
from ranp.pruning.importance import mnmg, mpmg
from ranp.pruning.methods import DEFAULT_LAMBDA, METHODS, Method, Resource
from ranp.pruning.reweight import check_lambda, reweight
from ranp.pruning.scores import Scores
from ranp.pruning.select import NeuronScores, floor_sparsity, layerwise, random, top_k
from ranp.pruning.snip import select_weights
from ranp.resources import Costs, count
from ranp.resources.latency import latency_table

DELTA = 1e-4
"""How closely Algorithm 2 finds the maximum sparsity."""


@dataclass(frozen=True)
class Chooser:
    """Everything a choice of neurons depends on, but for the sparsity.

    Attributes:
        model: The full network.
        graph: Its channel graph.
        method: A row of the table of methods.
        scores: Of the network, for methods that need them.
        lam: lambda of Eq. 10.
        resource: What Eq. 10 reweights by: a named resource or a cost for every layer; the
            method's own if not given.
        coupling: How tied channels are decided (see `ranp.pruning.coupling`).
        floor: Neurons that every layer keeps at least.
        multiple: Channel counts are rounded up to a multiple of it.
        seed: For random selection.
    """

    model: nn.Module
    graph: ChannelGraph
    method: Method
    scores: Scores | None = None
    lam: float = DEFAULT_LAMBDA
    resource: Resource | Mapping[str, float] | None = None
    coupling: Coupling = "paper"
    floor: int = 0
    multiple: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuses arguments that make no sense, and scores of another network."""
        if self.scores is not None:
            check_fingerprint(self.graph, self.scores.fingerprint, "scores")
        if self.floor < 0 or self.multiple < 1:
            raise UsageError("floor must not be negative, and multiple must be at least 1")
        if self.coupling not in get_args(Coupling):
            known = ", ".join(get_args(Coupling))
            raise UsageError(f"unknown coupling '{self.coupling}': use one of {known}")
        check_lambda(self.lam)
        if isinstance(self.resource, Mapping):
            missing = [name for name in self.graph.layers if name not in self.resource]
            if missing:
                raise UsageError(f"the resource vector has no cost for layer '{missing[0]}'")
        elif self.resource is not None and self.resource not in get_args(Resource):
            known = ", ".join(get_args(Resource))
            raise UsageError(f"unknown resource '{self.resource}': use {known} or a mapping")

    @cached_property
    def importance(self) -> NeuronScores:
        """The final importance of every neuron: Eq. 6 or 7, then Eq. 9, then Eq. 10."""
        s = self._criterion()
        if self.method.balance:
            s = balance(s)
        resource = self.resource if self.resource is not None else self.method.resource
        if resource is not None:
            s = reweight(s, self._tau(resource), self.lam)
        return share(self.graph, s, self.coupling)

    def _criterion(self) -> NeuronScores:
        method = self.method
        if method.criterion == "none":
            return {name: np.zeros(len(layer)) for name, layer in self.graph.layers.items()}
        scores = self._required_scores()
        if method.criterion == "mpmg":
            return mpmg(scores, method.reduction)
        if method.criterion == "mnmg":
            return mnmg(scores, method.reduction)
        if method.criterion == "snip":
            return {name: s.sum(1).double().numpy() for name, s in self._sensitivity.items()}
        return scores.average(method.criterion)

    def _tau(self, resource: Resource | Mapping[str, float]) -> Mapping[str, float]:
        """Tau of Eq. 10: what each layer itself costs, by the paper's counting or as measured."""
        if isinstance(resource, Mapping):
            return resource
        if resource == "latency":
            return latency_table(self.model, self.graph)
        column = {"flops": "flops", "memory": "activations", "params": "parameters"}[resource]
        costs = {cost.name: float(getattr(cost, column)) for cost in self._full_costs.layers}
        return {name: costs.get(name, 0.0) for name in self.graph.layers}

    @cached_property
    def _sensitivity(self) -> Mapping[str, Tensor]:
        """SNIP's connection sensitivity |g| of every weight, Eq. 2."""
        return self._required_scores().weight_averages("abs")

    def _required_scores(self) -> Scores:
        if self.scores is None:
            raise UsageError(f"method '{self.method.name}' needs scores; score the network first")
        return self.scores

    @cached_property
    def _full_costs(self) -> Costs:
        return count(self.model, self.graph)

    @cached_property
    def _tied(self) -> list[Bundle]:
        return bundles(self.graph)

    def choose(self, sparsity: float) -> Alive:
        """The channel classes that live at a sparsity; layers may come out empty."""
        alive = self._selected(sparsity)
        if self.floor:
            alive = at_least(self.graph, alive, self.importance, self.floor)
        if self.multiple > 1:
            alive = in_multiples(self.graph, alive, self.importance, self.multiple, self._tied)
        return alive

    def _selected(self, sparsity: float) -> Alive:
        selection = self.method.selection
        if selection == "weights":
            return select_weights(self.graph, self._sensitivity, sparsity)
        if selection == "flat":
            return self._flat(sparsity)
        if selection == "random":
            neurons = {name: len(layer) for name, layer in self.graph.layers.items()}
            retained = random(neurons, sparsity, self.seed)
        elif selection == "layerwise":
            retained = layerwise(self.importance, sparsity)
        else:
            retained = top_k(self.importance, sparsity)
        return couple(self.graph, retained, self._tied)

    def _flat(self, sparsity: float) -> Alive:
        """The widest uniform network whose FLOPs do not exceed those of ranp-f."""
        reference = Chooser(self.model, self.graph, METHODS["ranp-f"], self.scores, lam=self.lam)
        budget = count(self.model, self.graph, reference.choose(sparsity)).gflops
        equal = {name: np.zeros(len(layer)) for name, layer in self.graph.layers.items()}

        def narrow(share: float) -> Alive:
            return couple(self.graph, layerwise(equal, share), self._tied)

        share = bisect(lambda s: count(self.model, self.graph, narrow(s)).gflops > budget) + DELTA
        return narrow(min(share, 1 - DELTA))

    def feasible(self, sparsity: float) -> bool:
        """Whether every layer keeps at least one neuron."""
        return not self.graph.empty_layers(self.choose(sparsity))

    def require(self, sparsity: float) -> Alive:
        """The channels that live at a sparsity, all layers of which keep some.

        Raises:
            InfeasibleError: Names a layer that would be emptied, and how far one can go.
        """
        alive = self.choose(sparsity)
        empty = self.graph.empty_layers(alive)
        if empty:
            others = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
            scored = self.method.criterion == "none" or self.importance[empty[0]].any()
            reason = "" if scored else " (all its scores are zero)"
            raise InfeasibleError(
                f"{self.method.name} at sparsity {sparsity} leaves no neuron in layer "
                f"'{empty[0]}'{reason}{others}; the largest feasible sparsity is "
                f"{floor_sparsity(self.max_sparsity())}, or keep a floor of neurons in every layer"
            )
        return alive

    def max_sparsity(self) -> float:
        """Algorithm 2: the largest sparsity at which every layer keeps a neuron, to 1e-4.

        Raises:
            InfeasibleError: A layer keeps none at any sparsity.
        """
        empty = self.graph.empty_layers(self.choose(0))
        if empty:
            raise InfeasibleError(
                f"{self.method.name} leaves no neuron in layer '{empty[0]}' at any sparsity: "
                "nothing comes of what it computes; keep a floor of neurons in every layer"
            )
        return bisect(self.feasible)


def bisect(holds: Callable[[float], bool]) -> float:
    """The largest sparsity in [0, 1], to `DELTA`, for which something holds that holds at 0."""
    kappa_min, kappa_max = 0.0, 1.0
    while kappa_max - kappa_min > DELTA:
        kappa = 0.5 * (kappa_min + kappa_max)
        if holds(kappa):
            kappa_min = kappa
        else:
            kappa_max = kappa
    return kappa_min
