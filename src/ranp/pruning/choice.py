"""The choice of neurons as one value: method, lambda, resource, coupling, floor, multiple, seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from ranp.errors import UsageError, check_one_of
from ranp.pruning.coupling import Coupling, Floor
from ranp.pruning.equations import check_lambda
from ranp.pruning.methods import Method, find_method
from ranp.resources.budgets import find_resource

DEFAULT_LAMBDA = 11.0  # the paper's value for ShapeNet


@dataclass(frozen=True)
class Choice:
    """Everything that a choice of neurons depends on, but for network, scores and sparsity.

    Attributes:
        method: Row of the table of methods.
        lam: lambda of Eq. 10.
        resource: What Eq. 10 reweights by: the name of a resource, or a cost for every layer; the
            method's own if None.
        coupling: How tied channels are decided (see `ranp.pruning.coupling`).
        floor: Least number of neurons that every layer keeps, or "auto" for what the network
            needs (see `ranp.pruning.allocation.network_floors`).
        multiple: Channel counts are rounded up to a multiple of it.
        seed: Seed of random selection.
    """

    method: Method
    lam: float = DEFAULT_LAMBDA
    resource: str | Mapping[str, float] | None = None
    coupling: Coupling = "paper"
    floor: Floor = 0
    multiple: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.floor, str):
            if self.floor != "auto":
                raise UsageError(f"floor must be a number or 'auto', got '{self.floor}'")
        elif not isinstance(self.floor, int | np.integer) or self.floor < 0:
            raise UsageError(f"floor must not be negative, and be whole, got {self.floor!r}")
        if not isinstance(self.multiple, int | np.integer) or self.multiple < 1:
            raise UsageError(f"multiple must be at least 1, and be whole, got {self.multiple!r}")
        check_one_of("coupling", self.coupling, get_args(Coupling))
        check_lambda(self.lam)
        if isinstance(self.resource, str) and find_resource(self.resource).layer_costs is None:
            raise UsageError(f"resource '{self.resource}' has no cost per layer; use another")

    @classmethod
    def make(
        cls,
        method: str | Method = "ranp-f",
        *,
        lam: float | None = None,
        floor: Floor = 0,
        **settings: Any,
    ) -> Choice:
        """Build a choice from the keywords of `ranp.prune`; lambda is the paper's if None.

        Methods that have a floor of their own take another one only if it is not 0, and methods
        whose name has a lambda take no other.
        """
        row = find_method(method) if isinstance(method, str) else method
        if not isinstance(row, Method):
            raise UsageError(f"method must be a name, such as 'ranp-f', got {method!r}")
        lam = next((known for known in (row.lam, lam) if known is not None), DEFAULT_LAMBDA)
        return cls(row, lam, floor=floor or row.floor, **settings)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the method as plain values, for a plan's settings."""
        resource = self.resource
        return {
            "lambda": self.lam,
            "resource": dict(resource) if isinstance(resource, Mapping) else resource,
            "coupling": self.coupling,
            "floor": self.floor,
            "multiple": self.multiple,
            "seed": self.seed,
        }
