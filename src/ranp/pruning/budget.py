"""How much to prune for a budget."""

from __future__ import annotations

from collections.abc import Callable

from ranp.errors import InfeasibleError
from ranp.graph import Alive
from ranp.pruning.choose import DELTA, Chooser, bisect
from ranp.resources import Costs, count


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
        most = chooser.max_sparsity()
        raise InfeasibleError(
            f"{chooser.method.name} cannot come down to {budget:.6g}: at its largest feasible "
            f"sparsity, {most:.4f}, the network still costs {at(most):.6g}"
        )
    wider = max(sparsity - DELTA, 0.0)
    return min((sparsity, wider), key=lambda each: abs(at(each) - budget))
