"""The table of methods: a new one is a row here or in a file of yours, see `register_method`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ranp.errors import UsageError, register, suggest
from ranp.pruning.allocation import power
from ranp.pruning.coupling import Floor
from ranp.pruning.criteria import CRITERIA, DEFAULT_STATISTICS, Criterion
from ranp.pruning.selection import GLOBAL, LAYERWISE, RANDOM, Selection, flat, snip_np
from ranp.pruning.statistics import Once, Statistic

DEFAULT_EXPONENT = -0.25
"""Exponent of "power": on a U-Net that doubles, widths grow by 1.41 from level to level."""


@dataclass(frozen=True)
class Method:
    """How neurons are scored, weighed and selected.

    Attributes:
        name: Name of the method.
        about: One-line description.
        criterion: Measure of a neuron's importance; None if all neurons count the same.
        balance: Whether Eq. 9 gives all layers the same mean.
        resource: Name of the resource that Eq. 10 reweights by, if it does.
        selection: Rule by which neurons are selected.
        floor: Floor of the method if none is given (see `ranp.pruning.coupling.Floor`).
        lam: lambda of Eq. 10, in place of what is given; None for all but "ranp-f:3" and the like.
        variant: Returns the method for a number behind its name, as in "power:-0.5". Where Eq. 10
            reweights, that number is lambda, and no function is needed.
    """

    name: str
    about: str
    criterion: Criterion | None = None
    balance: bool = False
    resource: str | None = None
    selection: Selection = GLOBAL
    floor: Floor = 0
    lam: float | None = None
    variant: Callable[[float], Method] | None = field(default=None, repr=False, compare=False)

    @property
    def _needs(self) -> tuple[Statistic, ...]:
        own = () if self.criterion is None else self.criterion.statistics
        return (*own, *self.selection.statistics)

    @property
    def needs_data(self) -> bool:
        """Whether batches are needed."""
        return any(not isinstance(statistic, Once) for statistic in self._needs)

    @property
    def needs_scores(self) -> bool:
        """Whether the network must be scored at all."""
        return bool(self._needs)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """What scoring must gather for it beyond what it gathers for every method."""
        return tuple(statistic for statistic in self._needs if statistic not in DEFAULT_STATISTICS)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values, for JSON."""
        criterion = self.criterion
        return {
            "name": self.name,
            "about": self.about,
            "criterion": "none" if criterion is None else criterion.name,
            "reduction": (criterion and criterion.reduction) or "sum",
            "balance": self.balance,
            "resource": self.resource,
            "selection": self.selection.name,
        }


def _method(name: str, about: str, criterion: str, **options: Any) -> Method:
    return Method(name, about, CRITERIA[criterion], **options)


def _snip(name: str, about: str, **rule: Any) -> Method:
    return _method(name, about, "snip", selection=snip_np(**rule))


def _power(exponent: float) -> Method:
    about = f"width by the cost of a neuron to the power {-exponent:g}; power:a for another -a"
    return Method("power", about, selection=power(exponent), floor="auto", variant=_power)


_RANP_F = _method(
    "ranp-f", "RANP by FLOPs: the paper's method", "mpmg-sum", balance=True, resource="flops"
)
_TABLE = (
    _RANP_F,
    _method("ranp-m", "RANP by activation memory", "mpmg-sum", balance=True, resource="memory"),
    _method("ranp-p", "RANP by parameters", "mpmg-sum", balance=True, resource="params"),
    _method("ranp-l", "RANP by measured latency", "mpmg-sum", balance=True, resource="latency"),
    _method("weighted", "balanced between layers, without resources", "mpmg-sum", balance=True),
    _method("vanilla", "MPMG-sum: neuron importance as it is", "mpmg-sum"),
    _method("mpmg-mean", "MPMG, mean over a neuron's weights", "mpmg-mean"),
    _method("mpmg-max", "MPMG, largest of a neuron's weights", "mpmg-max"),
    _method("mnmg-sum", "magnitude of the neuron mask gradient", "mnmg-sum"),
    _method("mnmg-mean", "MNMG, mean over a neuron's weights", "mnmg-mean"),
    _method("mnmg-max", "MNMG, largest of a neuron's weights", "mnmg-max"),
    Method("layerwise", "the same share of every layer", selection=LAYERWISE),
    Method("thin", "layerwise by its common name: fewer features by hand", selection=LAYERWISE),
    _power(DEFAULT_EXPONENT),
    Method("random", "neurons drawn at random over all layers", selection=RANDOM),
    _snip("snip", "single weights, then dead neurons; sparsity of weights"),
    _snip("snip-authors", "SNIP as the paper's authors had it", rank_last=True, readers="all"),
    _snip("snip-forward", "the same, forward only", rank_last=True, readers="none"),
    _method("magnitude", "L1 norm of a neuron's weights", "magnitude"),
    _method("synflow", "SynFlow in one shot, without data", "synflow"),
    _method("grasp", "GraSP: what keeps gradients flowing", "grasp"),
    Method("flat", "one width for all layers, at the FLOPs of ranp-f", selection=flat(_RANP_F)),
)

METHODS: dict[str, Method] = {row.name: row for row in _TABLE}
"""The known methods, by name."""


def register_method(method: Method) -> Method:
    """Add a method to the table.

    Raises:
        UsageError: The name is already taken.
    """
    return register(METHODS, method.name, method, "method")


def find_method(name: str, also: Iterable[str] = ()) -> Method:
    """Return the method of that name, or raise an error that suggests the closest.

    "power:-0.5" is the method "power" with another exponent, "ranp-f:3" is "ranp-f" with another
    lambda. Names in `also` are suggested too.
    """
    family, colon, number = name.partition(":")
    if family not in METHODS:
        raise UsageError(f"unknown method '{name}'.{suggest(name, [*also, *METHODS])}")
    row = METHODS[family]
    if not colon:
        return row
    if row.variant is None and row.resource is None:
        raise UsageError(f"method '{family}' takes no number, got '{name}'; use '{family}'")
    try:
        value = float(number)
    except ValueError as error:
        raise UsageError(f"'{family}:' must be followed by a number, got '{name}'") from error
    return replace(row.variant(value) if row.variant else replace(row, lam=value), name=name)


def resource_variants(method: Method) -> tuple[Method, ...]:
    """Return a method, and those that differ from it by the resource of Eq. 10 alone."""
    own: dict[str, Any] = {"name": method.name, "about": method.about, "resource": method.resource}
    others = (row for row in METHODS.values() if row.name != method.name)
    return (method, *(row for row in others if replace(row, **own) == method))


def statistics_for(methods: Iterable[Method]) -> tuple[Statistic, ...]:
    """Return all that scoring must gather to serve some methods, in a fixed order."""
    beyond = dict.fromkeys(statistic for method in methods for statistic in method.statistics)
    return (*DEFAULT_STATISTICS, *sorted(beyond, key=lambda statistic: statistic.name))
