"""Budgets: what a network may cost, in the words that people use."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ranp.errors import UsageError

ResourceName = Literal["memory", "flops", "params", "latency"]
Amount = str | float

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {f"{prefix}i": 2 ** (10 * power) for power, prefix in enumerate("kmgt", start=1)}


def _units(prefixes: Mapping[str, float], *names: str) -> dict[str, float]:
    """What one of each unit is, such as "gib" in bytes, in small letters."""
    return {prefix + name: factor for prefix, factor in prefixes.items() for name in names}


_UNITS: dict[ResourceName, dict[str, float]] = {
    "memory": _units(_DECIMAL, "", "b") | _units(_BINARY, "", "b"),
    "flops": _units(_DECIMAL, "", "flop", "flops"),
    "params": _units(_DECIMAL, ""),
    "latency": {"": 1, "s": 1, "ms": 1e-3, "us": 1e-6, "min": 60},
}
_EXAMPLES: dict[ResourceName, str] = {
    "memory": "8GiB",
    "flops": "20GFLOPs",
    "params": "3M",
    "latency": "250ms",
}
RESOURCES: tuple[ResourceName, ...] = tuple(_UNITS)
"""What can be budgeted."""

_NUMBER_AND_UNIT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*|%)\s*")


@dataclass(frozen=True)
class Budget:
    """An upper bound on one resource.

    Attributes:
        resource: "memory" (bytes of a training step), "flops" (of a forward pass of one sample),
            "params" (their number) or "latency" (seconds of a training step).
        limit: The bound.
        of_full: Whether it is a share of what the full network takes.
    """

    resource: ResourceName
    limit: float
    of_full: bool = False

    def __str__(self) -> str:
        if self.of_full:
            return f"{100 * self.limit:g} % of the full network's {self.resource}"
        return describe(self.resource, self.limit)

    def absolute(self, full: float) -> Budget:
        """The same bound, if the full network takes so much."""
        return Budget(self.resource, self.limit * full) if self.of_full else self


def parse_budget(resource: ResourceName, amount: Amount) -> Budget:
    """A budget from words such as "8GiB", "500 MB", "20GFLOPs", "3M", "250ms", or from a number.

    A number is in bytes, operations, parameters or seconds. "GB" is 10^9 bytes, "GiB" 2^30. "50%"
    is half of what the full network takes.
    """
    if isinstance(amount, bool) or not isinstance(amount, (str, int, float)):
        raise UsageError(f"a budget of {resource} is a number or a text, not {amount!r}")
    if isinstance(amount, str):
        match = _NUMBER_AND_UNIT.fullmatch(amount.lower())
        units = _UNITS[resource] | {"%": 0.01}
        if match is None or match[2] not in units:
            raise UsageError(
                f"'{amount}' is no amount of {resource}; write it as {_EXAMPLES[resource]} or 50%"
            )
        limit = float(match[1]) * units[match[2]]
    else:
        limit = float(amount)
    if not 0 < limit < math.inf:
        raise UsageError(f"a budget of {resource} must be positive, and '{amount}' is not")
    return Budget(resource, limit, of_full=isinstance(amount, str) and "%" in amount)


def make_budgets(given: Mapping[ResourceName, Amount | None]) -> tuple[Budget, ...]:
    """The budgets that were given.

    Raises:
        UsageError: There is none, or one cannot be understood.
    """
    budgets = tuple(parse_budget(name, text) for name, text in given.items() if text is not None)
    if not budgets:
        raise UsageError(f"give a budget: {', '.join(RESOURCES)}, or several of them")
    return budgets


def describe(resource: ResourceName, value: float) -> str:
    """An amount of a resource, for people."""
    if resource == "memory":
        return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"
    if resource == "flops":
        return f"{value / 1e9:.2f} GFLOPs" if value >= 1e7 else f"{value / 1e6:.3f} MFLOPs"
    if resource == "params":
        return f"{value:,.0f} parameters"
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"
