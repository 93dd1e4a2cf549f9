"""Algorithm 1, second half, and Algorithm 2: from scores to living channels, and how few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ranp.errors import InfeasibleError, UsageError, check_one_of, name_settings
from ranp.graph import Alive, ChannelGraph
from ranp.pruning.allocation import marginal_costs, network_floors
from ranp.pruning.choice import Choice
from ranp.pruning.coupling import (
    REACHING,
    ChannelGroup,
    apply_floors,
    channel_groups,
    couple,
    round_up_to_multiple,
    share_scores,
)
from ranp.pruning.equations import balance, check_costs, reweight
from ranp.pruning.scores import NeuronScores, Scores
from ranp.pruning.search import bisect, floor_sparsity, smallest_sparsity
from ranp.resources import Costs, count
from ranp.resources.budgets import find_resource

Feasibility = Literal["paper", "coupled"]
"""Which neurons Algorithm 2 asks for: those of each layer's own mask, or of the slim network."""

_TOLERATED_SHORTFALL = 0.02
"""Share of neurons by which a sparsity may be missed without a word."""

_MOST_CACHED_COSTS = 64
"""Networks whose costs are remembered."""


@dataclass(frozen=True)
class Chooser:
    """Chooses the living channels of a network at any sparsity.

    A copy by `dataclasses.replace` shares the costs that were counted already.

    Attributes:
        model: The full network.
        graph: Its channel graph.
        choice: Method and settings of the choice.
        scores: Scores of the network, for methods that need them.
    """

    model: nn.Module
    graph: ChannelGraph
    choice: Choice
    scores: Scores | None = None
    _counted: dict[bytes, Costs] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse scores of another network, and costs that do not fit its layers."""
        if self.scores is not None:
            self.scores.check_network(self.graph)
        if isinstance(self.choice.resource, Mapping):
            check_costs(self.choice.resource, self.graph.layers)

    def with_settings(self, **settings: Any) -> Chooser:
        """Return a chooser of the same network and scores with other settings of the choice."""
        return replace(self, choice=replace(self.choice, **settings))

    @cached_property
    def importance(self) -> NeuronScores:
        """The final importance of every neuron: Eq. 6 or 7, then Eq. 9, then Eq. 10."""
        method, choice = self.choice.method, self.choice
        if method.criterion is None:
            s: NeuronScores = {name: np.zeros(n) for name, n in self.neurons.items()}
        else:
            s = method.criterion.importance(self.required_scores)
        if method.balance:
            s = balance(s)
        resource = method.resource if choice.resource is None else choice.resource
        if resource is not None:
            s = reweight(s, self._tau(resource), choice.lam)
        return share_scores(self.graph, s, choice.coupling)

    def _tau(self, resource: str | Mapping[str, float]) -> Mapping[str, float]:
        """Return tau of Eq. 10: what each layer itself costs, as counted or as measured."""
        if isinstance(resource, Mapping):
            return resource
        layer_costs = find_resource(resource).layer_costs
        assert layer_costs is not None
        costs = layer_costs(self.model, self.graph, self.costs())
        return {name: costs.get(name, 0.0) for name in self.graph.layers}

    @cached_property
    def sensitivity(self) -> Mapping[str, Tensor]:
        """SNIP's connection sensitivity |g| of every weight, Eq. 2."""
        return self.required_scores.weight_averages("abs")

    @property
    def required_scores(self) -> Scores:
        """The scores; raises `UsageError` if there are none."""
        if self.scores is None:
            raise UsageError(
                f"method '{self.choice.method.name}' needs scores; score the network first"
            )
        return self.scores

    @property
    def neurons(self) -> dict[str, int]:
        """Number of neurons of each layer."""
        return {name: len(layer) for name, layer in self.graph.layers.items()}

    @cached_property
    def channel_groups(self) -> list[ChannelGroup]:
        """Channel classes, grouped by the layers that produce them."""
        return channel_groups(self.graph)

    @cached_property
    def floors(self) -> Mapping[str, int]:
        """Least number of neurons of every layer."""
        floor = self.choice.floor
        if floor == "auto":
            return network_floors(self.graph, self.channel_groups)
        return dict.fromkeys(self.graph.layers, floor)

    @cached_property
    def marginal_costs(self) -> NDArray[np.float64]:
        """What the full network saves without one channel of each group, by group."""
        return marginal_costs(self)

    def costs(self, alive: Alive | None = None) -> Costs:
        """Return what the network costs with some channels alive, with all if not given."""
        alive = self.graph.all_alive() if alive is None else alive
        key = alive.tobytes()
        if key not in self._counted:
            if len(self._counted) >= _MOST_CACHED_COSTS:
                self._counted.pop(next(iter(self._counted)))
            self._counted[key] = count(self.model, self.graph, alive)
        return self._counted[key]

    def choose(self, sparsity: float) -> Alive:
        """Return the channels that live at a sparsity; layers may come out empty."""
        choice = self.choice
        alive = choice.method.selection.select(self, sparsity)
        if isinstance(alive, dict):
            alive = couple(self.graph, alive, self.channel_groups)
        if choice.floor:
            alive = apply_floors(self.graph, alive, self.importance, self.floors)
        if choice.multiple > 1:
            alive = round_up_to_multiple(
                self.graph, alive, self.importance, choice.multiple, self.channel_groups
            )
        return alive

    def keeps_every_layer(self, sparsity: float, rule: Feasibility = "coupled") -> bool:
        """Return whether every layer keeps a neuron (see `max_sparsity`).

        By the rule "paper" depthwise layers are asked, too, although their channels follow those
        that feed them; the last layer, which is kept whole, is not. Selections of channels have no
        masks of layers.
        """
        if rule == "paper" and not self.choice.floor:
            selected = self.choice.method.selection.select(self, sparsity)
            if isinstance(selected, dict):
                layers, removable = self.graph.layers.items(), self.graph.removable
                return all(selected[n].any() for n, each in layers if removable[each.neurons].any())
        return not self.graph.empty_layers(self.choose(sparsity))

    def choose_feasible(self, sparsity: float) -> Alive:
        """Return the channels that live at a sparsity, some of them in every layer.

        Raises:
            InfeasibleError: A layer would be emptied; names it and the largest feasible sparsity.
        """
        alive = self.choose(sparsity)
        empty = self.graph.empty_layers(alive)
        if empty:
            method = self.choice.method
            others = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
            scored = method.criterion is None or self.importance[empty[0]].any()
            reason = "" if scored else " (all its scores are zero)"
            largest = self.max_sparsity()
            raise InfeasibleError(
                f"{method.name} at sparsity {sparsity} leaves no neuron in layer "
                f"'{empty[0]}'{reason}{others}; the largest feasible sparsity is "
                f"{floor_sparsity(largest)}, or keep neurons in every layer with "
                f"{name_settings(floor='auto')}",
                max_sparsity=largest,
            )
        return alive

    def shortfall(self, sparsity: float, alive: Alive) -> str | None:
        """Return by how much fewer neurons are removed than was asked for, and what would do.

        Returns:
            None if it is reached, to 0.02, or where sparsity is not a share of neurons.
        """
        removed = self.share_removed(alive)
        selected = self.choice.method.selection.select(self, sparsity)
        if removed >= sparsity - _TOLERATED_SHORTFALL or not isinstance(selected, dict):
            return None
        coupling, floor = REACHING
        tied = self.with_settings(coupling=coupling, floor=floor)
        with_tied = self.share_removed(tied.choose(sparsity))
        setting = {"coupling": coupling, "floor": floor}

        def reaches(alive: Alive) -> bool:
            return self.share_removed(alive) >= sparsity

        more = smallest_sparsity(self, reaches)
        ways = [] if more is None else [name_settings(sparsity=round(more, 4))]
        if with_tied >= sparsity - _TOLERATED_SHORTFALL:
            ways.insert(0, name_settings(**setting))
        elif more is None and (both := smallest_sparsity(tied, reaches)) is not None:
            ways = [name_settings(**setting, sparsity=round(both, 4))]
        return (
            f"{100 * removed:.1f} % of the neurons are removed, {100 * sparsity:.1f} % were asked "
            "for: channels that are tied are kept together, and some must stay; "
            f"{' or '.join(ways) or 'no setting that was tried'} reaches it"
        )

    def share_removed(self, alive: Alive) -> float:
        """Return the share of neurons that are removed."""
        kept = sum(map(len, self.graph.kept(alive).values()))
        return 1 - kept / sum(self.neurons.values())

    def max_sparsity(self, rule: Feasibility = "coupled") -> float:
        """Return the largest sparsity at which every layer keeps a neuron, to 1e-4: Algorithm 2.

        Args:
            rule: "paper" asks each layer's own mask, as Algorithm 2 does; "coupled" the slim
                network, in which a layer that is tied to others may keep what they keep.

        Raises:
            InfeasibleError: A layer keeps none at any sparsity.
        """
        empty = self.graph.empty_layers(self.choose(0))
        if empty:
            raise InfeasibleError(
                f"{self.choice.method.name} leaves no neuron in layer '{empty[0]}' at any "
                "sparsity: its outputs are not used; keep neurons in every layer with "
                f"{name_settings(floor='auto')}"
            )
        check_one_of("rule", rule, get_args(Feasibility))
        return bisect(lambda sparsity: self.keeps_every_layer(sparsity, rule))
