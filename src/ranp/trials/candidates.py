"""Candidates of a race: which methods race, brought to one budget, and refinements of a winner."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ranp.errors import InfeasibleError, UsageError, first_of, name_settings
from ranp.graph import ChannelGraph
from ranp.pruning import Choice, Method, find_method, resource_variants
from ranp.pruning.allocation import (
    proportional,
    single_neuron_layers,
    thin_layers,
    tilted_weights,
)
from ranp.resources.budgets import Budget
from ranp.trials.allocating import Allocation, Allocator, Unreachable

THIN = "thin"

logger = logging.getLogger("ranp")

DEFAULT_CANDIDATES = (
    *("ranp-f", "weighted", THIN, "power:-0.25", "power:0.25"),
    *("power:-0.5", "power:0.5"),
)
"""First what others must beat: the default of `prune`, and thinning by hand where nothing can be
scored. The first ones race where the cost does not allow all: those that are least like RANP-f,
which `power:0.25` is like."""


def default_candidates(budget: Budget) -> tuple[str, ...]:
    """Return what races at a budget: RANP by the resource that is budgeted, then the others."""
    incumbent, *challengers = DEFAULT_CANDIDATES
    variants = resource_variants(find_method(incumbent))
    by_resource = {row.resource: row.name for row in variants}
    return (by_resource.get(budget.resource, incumbent), *challengers)


def choose_candidates(
    allocator: Allocator, names: Sequence[str] | None, budget: Budget, seed: int
) -> list[Choice]:
    """Return the choices that race; without names the default ones, as far as data allow."""
    if isinstance(names, str) or (names is not None and not names):
        raise UsageError(f"candidates must be a list of names, got {names!r}")
    wanted = default_candidates(budget) if names is None else names
    twice = next((name for name in wanted if wanted.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"candidates must be different methods, got {twice} twice; name it once")
    choices = [allocator.choice(name, budget, seed) for name in wanted]
    if names is None and not allocator.has_data:
        choices = [choice for choice in choices if not choice.method.needs_data]
    return choices


def bring_to_budget(
    allocator: Allocator, choices: Sequence[Choice], budget: Budget
) -> tuple[dict[str, Allocation], dict[str, str]]:
    """Return the candidates' networks at a budget, and those left out with the reason.

    Where a method cannot reach the budget, or would leave a layer too thin to be trained (see
    `thin_layers`), it races with the floor "auto". Of those that come to the same network, the
    first candidate keeps its name, else thin, which everybody knows.

    Raises:
        InfeasibleError: No candidate reaches the budget.
    """
    loop = allocator.loop
    allocations: dict[str, Allocation] = {}
    left_out: dict[str, str] = {}
    names: dict[Path, str] = {}
    for choice in sorted(choices, key=lambda c: (c is not choices[0], c.method.name != THIN)):
        name = choice.method.name
        found = allocator.allocate(choice, budget)
        if isinstance(found, Unreachable) or thin_layers(loop.graph, found.alive):
            floored = allocator.allocate(replace(choice, floor="auto"), budget)
            found = floored if isinstance(floored, Allocation) else found
        if isinstance(found, Unreachable):
            left_out[name] = found.reason
            continue
        place = loop.store.place(loop.cell(found.alive, choice.seed))
        if place in names:
            left_out[name] = f"it is the same network as {names[place]}"
            continue
        names[place] = name
        allocations[name] = found
    if not allocations:
        raise InfeasibleError(f"no candidate can race:{_each_once(left_out)}")
    order = [choice.method.name for choice in choices]
    kept = {name: allocations[name] for name in order if name in allocations}
    _warn_of_single_channels(loop.graph, kept)
    return kept, left_out


def _warn_of_single_channels(graph: ChannelGraph, allocations: Mapping[str, Allocation]) -> None:
    """Warn of candidates that keep layers with one channel, as the budget leaves no more."""
    names = [name for name, each in allocations.items() if single_neuron_layers(graph, each.alive)]
    if names:
        logger.warning(
            "%s: some layers keep a single channel, since the budget is out of reach with %s; "
            "no training can open such a layer again, so allow a larger budget",
            first_of(names, 3),
            name_settings(floor="auto"),
        )


def _each_once(left_out: Mapping[str, str]) -> str:
    """Return a line for every reason; those that hold for several names are given once.

    A reason begins with the name that it is of.
    """
    names: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        names.setdefault(reason.removeprefix(f"{name} "), []).append(name)
    return "".join(f"\n  {', '.join(held)} {reason}" for reason, held in names.items())


def refinements(
    allocator: Allocator, winner: str, network: Allocation, budget: Budget, seed: int
) -> dict[str, Allocation]:
    """Return networks around the winner's, at the same budget; each of them once."""
    chooser = allocator.chooser(Choice.make(THIN))
    refined: dict[str, Allocation] = {}
    known = [network.widths]
    for tilt, weights in tilted_weights(chooser, network.alive).items():
        rule = proportional(weights)
        method = Method(f"{winner} {tilt}", "refined in a race", selection=rule, floor="auto")
        found = allocator.allocate(allocator.choice(method, budget, seed), budget)
        if isinstance(found, Allocation) and found.widths not in known:
            known.append(found.widths)
            refined[method.name] = found
    return refined
