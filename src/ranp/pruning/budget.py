"""How much to prune for a budget."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ranp.errors import InfeasibleError
from ranp.graph import Alive
from ranp.pruning.choose import DELTA, Chooser, bisect
from ranp.pruning.select import floor_sparsity
from ranp.resources import Costs, count

_NEXT_IN_LINE = 0.02
"""The share of neurons that may be given back to fill what is left of a budget."""

_NEAR = 1e-3
"""The share of a budget that need not be filled."""


def smallest_sparsity(chooser: Chooser, keeps: Callable[[Alive], bool]) -> float | None:
    """The smallest feasible sparsity, to 1e-4, whose living channels keep a budget.

    Args:
        chooser: Chooses the channels that live at a sparsity.
        keeps: Whether they keep the budget; what does, still does with fewer of them.

    Returns:
        None if not even the largest feasible sparsity keeps it.
    """
    if keeps(chooser.choose(0.0)):
        return 0.0
    most = chooser.max_sparsity()
    exceeded = bisect(lambda sparsity: sparsity <= most and not keeps(chooser.choose(sparsity)))
    sparsity = min(exceeded + DELTA, most)
    return sparsity if keeps(chooser.choose(sparsity)) else None


def match(chooser: Chooser, cost: Callable[[Costs], float], budget: float) -> float:
    """The sparsity at which a network costs as nearly as possible what a budget says.

    Args:
        chooser: Chooses the channels that live at a sparsity.
        cost: What is budgeted, such as `lambda costs: costs.gflops`.
        budget: How much of it the slim network should cost.

    Raises:
        InfeasibleError: The smallest feasible network still costs more.
    """

    def at(sparsity: float) -> float:
        return cost(count(chooser.model, chooser.graph, chooser.choose(sparsity)))

    sparsity = smallest_sparsity(
        chooser, lambda alive: cost(count(chooser.model, chooser.graph, alive)) <= budget
    )
    if sparsity is None:
        raise _too_dear(chooser, cost, budget)
    wider = max(sparsity - DELTA, 0.0)
    return min((sparsity, wider), key=lambda each: abs(at(each) - budget))


def matched(
    chooser: Chooser,
    cost: Callable[[Costs], float],
    budget: float,
    *,
    window: float = _NEXT_IN_LINE,
) -> tuple[float, Alive]:
    """A sparsity and the living channels nearest to a budget, also where widths step together.

    With the same share of every layer, many layers gain a neuron at the same sparsity: between
    one width and the next a network's cost jumps by several per cent, and `match` cannot come
    nearer. Where neurons are ranked, a single one of a layer at full resolution can be as much.
    Here neurons are given back one by one, the dearest first, as long as the budget allows: those
    of the step, then those next in line, until a thousandth is left; and one more, if that comes
    nearer.

    Args:
        chooser: Chooses the channels that live at a sparsity.
        cost: What is budgeted.
        budget: How much of it the slim network should cost.
        window: How far down the line neurons may come from, in sparsity. `DELTA` keeps to the
            method's own ranking: neurons of the step come back, and none before its turn.

    Raises:
        InfeasibleError: The smallest feasible network still costs more.
    """

    def costs(alive: Alive) -> float:
        return cost(count(chooser.model, chooser.graph, alive))

    sparsity = smallest_sparsity(chooser, lambda alive: costs(alive) <= budget)
    if sparsity is None:
        raise _too_dear(chooser, cost, budget)
    alive = chooser.choose(sparsity)
    if budget - costs(alive) <= _NEAR * budget:
        return sparsity, alive
    for reach in (DELTA, window):
        waiting = np.flatnonzero(chooser.choose(max(sparsity - reach, 0.0)) & ~alive).tolist()
        prices = {neuron: costs(_with(alive, neuron)) for neuron in waiting}
        for neuron in sorted(waiting, key=lambda each: -prices[each]):
            if (spent := costs(more := _with(alive, neuron))) <= budget:
                alive = more
                if budget - spent <= _NEAR * budget:
                    return sparsity, alive
    around = [alive, *(_with(alive, neuron) for neuron in waiting)]
    return sparsity, min(around, key=lambda each: abs(costs(each) - budget))


def _with(alive: Alive, neuron: int) -> Alive:
    more = alive.copy()
    more[neuron] = True
    return more


def _too_dear(chooser: Chooser, cost: Callable[[Costs], float], budget: float) -> InfeasibleError:
    most = chooser.max_sparsity()
    least = cost(count(chooser.model, chooser.graph, chooser.choose(most)))
    return InfeasibleError(
        f"{chooser.method.name} cannot come down to {budget:.6g}: at its largest feasible "
        f"sparsity, {floor_sparsity(most)}, the network still costs {least:.6g}"
    )
