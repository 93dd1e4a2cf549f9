"""Searches over sparsity: the largest that holds, and the one that meets a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ranp.errors import InfeasibleError, name_settings
from ranp.graph import Alive
from ranp.resources.budgets import Budget, describe

if TYPE_CHECKING:
    from ranp.pruning.choose import Chooser

DELTA = 1e-4
"""delta of Algorithm 2: tolerance of every search over sparsity."""

_NEXT_IN_LINE = 0.02
"""Share of neurons that may be brought back to fill what is left of a budget."""

_NEXT_UNRANKED = (DELTA, 0.02, 0.1, 0.3, 1.0)
"""The same for methods that rank no neurons: the nearest first, in the end those of any layer."""

_UNFILLED = 1e-3
"""Share of a budget that need not be filled."""


def bisect(holds: Callable[[float], bool]) -> float:
    """Return the largest sparsity in [0, 1], to `DELTA`, at which a condition holds: Algorithm 2.

    Args:
        holds: Condition that holds at 0, and from some sparsity on does not.
    """
    kappa_min, kappa_max = 0.0, 1.0
    while kappa_max - kappa_min > DELTA:
        kappa = 0.5 * (kappa_min + kappa_max)
        if holds(kappa):
            kappa_min = kappa
        else:
            kappa_max = kappa
    return kappa_min


def floor_sparsity(sparsity: float) -> str:
    """Format a largest feasible sparsity, rounded down: rounded up, it would not be feasible."""
    return f"{math.floor(1e4 * sparsity) / 1e4:.4f}"


def smallest_sparsity(chooser: Chooser, fits: Callable[[Alive], bool]) -> float | None:
    """Return the smallest feasible sparsity, to `DELTA`, whose living channels fit a budget.

    If living channels fit, any subset of them must fit too.

    Returns:
        None if not even those of the largest feasible sparsity fit.
    """
    if fits(chooser.choose(0.0)):
        return 0.0
    most = chooser.max_sparsity()
    exceeded = bisect(lambda sparsity: sparsity <= most and not fits(chooser.choose(sparsity)))
    sparsity = min(exceeded + DELTA, most)
    return sparsity if fits(chooser.choose(sparsity)) else None


def meet_budget(chooser: Chooser, budgets: Sequence[Budget]) -> tuple[float, Alive]:
    """Return the smallest sparsity that keeps all budgets, and the channels that live within them.

    Methods that score neurons keep to their ranking: what they choose at that sparsity. With the
    same share of every layer, or a rule for it, many layers gain a neuron at the same sparsity, so
    between one width and the next a network's cost jumps by several per cent. There neurons are
    brought back one by one, the most expensive first, as long as the budgets allow: those of the
    step, then those next in line, until a thousandth is left. (Not where channel counts must be
    multiples of a number: one by one they would not be.)

    Raises:
        InfeasibleError: The smallest feasible network exceeds one of them.
    """
    full = chooser.costs()
    limits = [budget.absolute(budget.total(full)) for budget in budgets]

    def spent(alive: Alive, limits: Sequence[Budget] = limits) -> float:
        """Return the largest share of a budget that channels take."""
        costs = chooser.costs(alive)
        return max(limit.total(costs) / limit.limit for limit in limits)

    sparsity = smallest_sparsity(chooser, lambda alive: spent(alive) <= 1)
    if sparsity is None:
        most = chooser.max_sparsity()
        smallest = chooser.choose(most)
        budget = next(limit for limit in limits if spent(smallest, [limit]) > 1)
        least, whole = budget.total(chooser.costs(smallest)), budget.total(full)
        raise InfeasibleError(
            f"{chooser.choice.method.name} cannot reach {_amount(budget, budget.limit)}, "
            f"{100 * budget.limit / whole:.3g} %: at its largest feasible sparsity, "
            f"{floor_sparsity(most)}, the network still costs "
            f"{_amount(budget, least)}, {100 * least / whole:.3g} %; "
            f"allow at least that{_what_helps(chooser, lambda alive: spent(alive) <= 1)}",
            max_sparsity=most,
        )
    return sparsity, fill_budget(chooser, sparsity, spent)


def _amount(budget: Budget, value: float) -> str:
    """Format an amount of what is budgeted; a mere number is followed by what it counts."""
    text = describe(budget.resource, value)
    return f"{text} {budget.resource}" if text[-1].isdigit() else text


def _what_helps(chooser: Chooser, fits: Callable[[Alive], bool]) -> str:
    """Return the first setting with which a method would fit its budgets, for a message."""
    settings: tuple[dict[str, Any], ...] = (
        {"floor": "auto"},
        {"floor": 1},
        {"coupling": "sum"},
        {"coupling": "mean"},
    )
    for setting in settings:
        with suppress(InfeasibleError):
            if smallest_sparsity(chooser.with_settings(**setting), fits) is not None:
                return f"; {name_settings(**setting)} would"
    return ""


def fill_budget(chooser: Chooser, sparsity: float, spent: Callable[[Alive], float]) -> Alive:
    """Return the channels that live at a sparsity, and those that budgets still have room for.

    See `meet_budget`; `spent` returns the largest share of a budget that channels take. Channels of
    a group cost the same: one price is computed for all, and where one does not fit, none does.
    """
    method = chooser.choice.method
    alive = chooser.choose(sparsity)
    if method.needs_scores or chooser.choice.multiple > 1 or spent(alive) >= 1 - _UNFILLED:
        return alive
    group_of = {
        channel: number
        for number, group in enumerate(chooser.channel_groups)
        for channel in group.classes.tolist()
    }
    for reach in (DELTA, _NEXT_IN_LINE) if method.selection.ranked else _NEXT_UNRANKED:
        waiting = np.flatnonzero(chooser.choose(max(sparsity - reach, 0.0)) & ~alive).tolist()
        firsts = {group_of[channel]: channel for channel in reversed(waiting)}
        prices = {
            number: spent(_with_channel(alive, channel)) for number, channel in firsts.items()
        }
        full: set[int] = set()
        for channel in sorted(waiting, key=lambda each: -prices[group_of[each]]):
            if group_of[channel] in full:
                continue
            if (share := spent(more := _with_channel(alive, channel))) > 1:
                full.add(group_of[channel])
                continue
            alive = more
            if share >= 1 - _UNFILLED:
                return alive
    return alive


def _with_channel(alive: Alive, neuron: int) -> Alive:
    more = alive.copy()
    more[neuron] = True
    return more
