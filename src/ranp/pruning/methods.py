"""The methods, as a table: a new one is a row here and a paragraph in the method card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ranp.errors import UsageError, suggest
from ranp.pruning.importance import Reduction

Criterion = Literal["mpmg", "mnmg", "magnitude", "synflow", "grasp", "snip", "none"]
Resource = Literal["flops", "memory", "params"]
Selection = Literal["global", "layerwise", "random", "weights", "flat"]

DEFAULT_LAMBDA = 11.0  # the paper's value for ShapeNet


@dataclass(frozen=True)
class Method:
    """How neurons are scored, weighed and selected.

    Attributes:
        name: What the method is called.
        criterion: What a neuron's importance is made of.
        reduction: f of Eq. 6, over a neuron's weights.
        balance: Whether Eq. 9 gives all layers the same mean.
        resource: What Eq. 10 reweights by, if it does.
        selection: Ranked over all layers or in each, at random, by single weights, or by one width
            for all layers.
        about: One line for people.
    """

    name: str
    criterion: Criterion
    reduction: Reduction
    balance: bool
    resource: Resource | None
    selection: Selection
    about: str

    @property
    def needs_data(self) -> bool:
        """Whether batches are needed."""
        return self.criterion in ("mpmg", "mnmg", "grasp", "snip") or self.selection == "flat"

    @property
    def needs_scores(self) -> bool:
        """Whether the network must be scored at all."""
        return self.criterion != "none" or self.selection == "flat"

    @property
    def statistics(self) -> tuple[str, ...]:
        """What scoring must gather for it beyond the usual."""
        if self.criterion == "snip" or (self.criterion, self.reduction) == ("mnmg", "max"):
            return ("signed",)
        if (self.criterion, self.reduction) == ("mpmg", "max"):
            return ("abs",)
        return (self.criterion,) if self.criterion in ("grasp", "synflow") else ()


# fmt: off
_TABLE = (
    #      name         criterion    reduction balance resource   selection
    Method("ranp-f",    "mpmg",      "sum",    True,   "flops",   "global",    "RANP, reweighted by FLOPs: the paper's method"),
    Method("ranp-m",    "mpmg",      "sum",    True,   "memory",  "global",    "RANP, reweighted by activation memory"),
    Method("weighted",  "mpmg",      "sum",    True,   None,      "global",    "balanced between layers, no resources"),
    Method("vanilla",   "mpmg",      "sum",    False,  None,      "global",    "MPMG-sum: neuron importance as it is"),
    Method("mpmg-mean", "mpmg",      "mean",   False,  None,      "global",    "mean over a neuron's weights"),
    Method("mpmg-max",  "mpmg",      "max",    False,  None,      "global",    "largest of a neuron's weights"),
    Method("mnmg-sum",  "mnmg",      "sum",    False,  None,      "global",    "magnitude of the neuron mask gradient"),
    Method("mnmg-mean", "mnmg",      "mean",   False,  None,      "global",    "the same, mean over a neuron's weights"),
    Method("mnmg-max",  "mnmg",      "max",    False,  None,      "global",    "the same, largest of a neuron's weights"),
    Method("layerwise", "none",      "sum",    False,  None,      "layerwise", "the same share of every layer"),
    Method("random",    "none",      "sum",    False,  None,      "random",    "neurons drawn at random over all layers"),
    Method("snip",      "snip",      "sum",    False,  None,      "weights",   "SNIP: single weights, then empty neurons; sparsity is of weights"),
    Method("magnitude", "magnitude", "sum",    False,  None,      "global",    "L1 norm of a neuron's weights"),
    Method("synflow",   "synflow",   "sum",    False,  None,      "global",    "SynFlow in one shot, without data"),
    Method("grasp",     "grasp",     "sum",    False,  None,      "global",    "GraSP: what keeps gradients flowing"),
    Method("flat",      "none",      "sum",    False,  None,      "flat",      "one width for all layers, at the FLOPs of ranp-f"),
)
# fmt: on

METHODS = {method.name: method for method in _TABLE}


def find_method(name: str) -> Method:
    """The method of that name, or an error that suggests the closest."""
    if name not in METHODS:
        raise UsageError(f"unknown method '{name}'.{suggest(name, METHODS)}")
    return METHODS[name]
