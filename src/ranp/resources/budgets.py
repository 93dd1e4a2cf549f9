"""Resources and budgets on them: one vocabulary for Eq. 10, fitting, comparisons and races."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from ranp.errors import UsageError, lookup, register
from ranp.graph import ChannelGraph
from ranp.resources.counting import Costs
from ranp.resources.latency import latency_table

Amount = str | float

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {f"{prefix}i": 2 ** (10 * power) for power, prefix in enumerate("kmgt", start=1)}


def _units(prefixes: Mapping[str, float], *names: str) -> dict[str, float]:
    """Return the size of each unit, such as "gib" in bytes, in lower case."""
    return {prefix + name: factor for prefix, factor in prefixes.items() for name in names}


_BYTES = _units(_DECIMAL, "", "b") | _units(_BINARY, "", "b")


@dataclass(frozen=True)
class Resource:
    """A resource of a network: what Eq. 10 reweights by, or what a budget limits.

    Attributes:
        name: Name of the resource.
        about: One-line description.
        units: Size of each unit that an amount may be written in, in lower case; "" for none.
        example: An amount, for messages.
        describe: Formats an amount.
        layer_costs: Cost of each layer of a network, tau of Eq. 10; None if it has none.
        total: Total of a counted network; None if it is predicted or measured instead.
        shrinks_with_input: Whether smaller inputs take less of it.
        measured: Whether it is measured, which takes time.
        whole: Whether it comes in whole numbers, so that an amount below 1 is invalid.
    """

    name: str
    about: str
    units: Mapping[str, float]
    example: str
    describe: Callable[[float], str]
    layer_costs: Callable[[nn.Module, ChannelGraph, Costs], Mapping[str, float]] | None = None
    total: Callable[[Costs], float] | None = None
    shrinks_with_input: bool = False
    measured: bool = False
    whole: bool = False


def _per_layer(column: str) -> Callable[[nn.Module, ChannelGraph, Costs], Mapping[str, float]]:
    return lambda model, graph, costs: {
        layer.name: float(getattr(layer, column)) for layer in costs.layers
    }


def _describe_bytes(value: float) -> str:
    if value < 2**16:
        return f"{value:.0f} B"
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def _describe_flops(value: float) -> str:
    if value < 1e4:
        return f"{value:.0f} FLOPs"
    return f"{value / 1e9:.2f} GFLOPs" if value >= 1e9 else f"{value / 1e6:.4g} MFLOPs"


_TABLE = (
    Resource(
        "memory",
        "peak of a training step, predicted; in Eq. 10, activations of each layer",
        _BYTES,
        "8GiB",
        _describe_bytes,
        layer_costs=_per_layer("activations"),
        shrinks_with_input=True,
        whole=True,
    ),
    Resource(
        "flops",
        "operations of a forward pass of one sample",
        _units(_DECIMAL, "", "flop", "flops"),
        "20GFLOPs",
        _describe_flops,
        layer_costs=_per_layer("flops"),
        total=lambda costs: costs.gflops * 1e9,
        shrinks_with_input=True,
        whole=True,
    ),
    Resource(
        "params",
        "number of parameters",
        _units(_DECIMAL, ""),
        "3M",
        lambda value: f"{value:,.0f}",
        layer_costs=_per_layer("parameters"),
        total=lambda costs: float(costs.parameters),
        whole=True,
    ),
    Resource(
        "latency",
        "seconds of a training step, measured on this machine",
        {"": 1, "s": 1, "ms": 1e-3, "us": 1e-6, "min": 60},
        "250ms",
        lambda value: f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms",
        layer_costs=lambda model, graph, costs: latency_table(model, graph),
        measured=True,
    ),
    Resource(
        "activations",
        "the paper's memory: outputs of all layers of one sample, 4 bytes each",
        _BYTES,
        "200MB",
        _describe_bytes,
        layer_costs=_per_layer("activations"),
        total=lambda costs: costs.memory_mb * 2**20,
        shrinks_with_input=True,
        whole=True,
    ),
    Resource(
        "gflops",
        "flops in units of 1e9",
        {"": 1},
        "5",
        lambda value: f"{value:{'.2f' if value >= 1 else '.4g'}} GFLOPs",
        layer_costs=_per_layer("flops"),
        total=lambda costs: costs.gflops,
        shrinks_with_input=True,
    ),
)

RESOURCES: dict[str, Resource] = {row.name: row for row in _TABLE}
"""The known resources, by name."""


def register_resource(resource: Resource) -> Resource:
    """Add a resource, for `resource=` of Eq. 10 and for budgets.

    Raises:
        UsageError: The name is already taken.
    """
    return register(RESOURCES, resource.name, resource, "resource")


def find_resource(name: str) -> Resource:
    """Return the resource of a name; raise `UsageError` if there is none."""
    return lookup(RESOURCES, name, "resource")


@dataclass(frozen=True)
class Budget:
    """An upper bound on one resource.

    Attributes:
        resource: Name of the resource.
        limit: The bound, in the resource's own unit (bytes, operations, parameters, seconds).
        of_full: Whether the bound is a share of what the full network takes.
    """

    resource: str
    limit: float
    of_full: bool = False

    def __str__(self) -> str:
        if self.of_full:
            return f"{100 * self.limit:g} % of the full network's {self.resource}"
        return describe(self.resource, self.limit)

    @property
    def is_counted(self) -> bool:
        """Whether the resource is counted, not predicted or measured."""
        return find_resource(self.resource).total is not None

    def absolute(self, full: float, constant: float = 0.0) -> Budget:
        """Return the same bound in absolute figures.

        Args:
            full: What the full network takes of the resource.
            constant: How much of that any network takes: the share is one of the rest.
        """
        if not self.of_full:
            return self
        return Budget(self.resource, constant + self.limit * (full - constant))

    def total(self, costs: Costs) -> float:
        """Return what a counted network takes of the resource; refuse one that is not counted."""
        total = find_resource(self.resource).total
        if total is None:
            counted = ", ".join(name for name, each in RESOURCES.items() if each.total)
            raise UsageError(f"a budget here must be on one of {counted}, got '{self.resource}'")
        return total(costs)


_NUMBER_AND_UNIT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*|%)\s*")


def parse_budget(resource: str, amount: Amount) -> Budget:
    """Return the budget for an amount such as "8GiB", "20GFLOPs", "3M", "250ms", or a number.

    A number is in bytes, operations, parameters or seconds. "GB" is 10^9 bytes, "GiB" 2^30. "50%"
    is half of what the full network takes.
    """
    row = find_resource(resource)
    if isinstance(amount, bool) or not isinstance(amount, (str, int, float)):
        raise UsageError(f"a budget of {resource} must be a number or a string, got {amount!r}")
    limit, unit = amount, ""
    if isinstance(limit, str):
        match = _NUMBER_AND_UNIT.fullmatch(limit.lower())
        units = {**row.units, "%": 0.01}
        if match is None or match[2] not in units:
            raise UsageError(
                f"a budget of {resource} must be an amount such as {row.example} or 50%, "
                f"got '{amount}'"
            )
        limit, unit = float(match[1]) * units[match[2]], match[2]
    if not 0 < limit < math.inf:
        raise UsageError(f"a budget of {resource} must be positive, got {amount!r}")
    if unit == "%" and limit > 1:
        raise UsageError(
            f"a budget of {resource} must be at most 100% of the full network's, got {amount!r}"
        )
    if row.whole and limit < 1 and not unit:
        raise UsageError(
            f"a budget of {resource} must be an amount such as {row.example} or 50%, got "
            f"{amount!r}; if a share is meant, give '{100 * limit:g}%'"
        )
    return Budget(resource, float(limit), of_full=unit == "%")


def split_budgets(texts: Iterable[str]) -> dict[str, str]:
    """Return amounts by resource for texts such as "flops=10%", as the command line takes them."""
    amounts = {}
    for text in texts:
        name, separator, amount = text.partition("=")
        if not separator:
            raise UsageError(f"a budget must be written as resource=amount, got '{text}'")
        amounts[find_resource(name.strip()).name] = amount
    return amounts


def parse_budgets(amounts: Mapping[str, Amount | None]) -> tuple[Budget, ...]:
    """Return the budgets for amounts by resource, in order, at least one; None sets no budget."""
    if not isinstance(amounts, Mapping):
        raise UsageError(
            f"a budget must be amounts by resource, such as {{'flops': '10%'}}, got {amounts!r}"
        )
    budgets = tuple(parse_budget(name, text) for name, text in amounts.items() if text is not None)
    if not budgets:
        raise UsageError(f"give at least one budget: {', '.join(RESOURCES)}")
    return budgets


def describe(resource: str, value: float) -> str:
    """Format an amount of a resource with its unit."""
    return find_resource(resource).describe(value)
