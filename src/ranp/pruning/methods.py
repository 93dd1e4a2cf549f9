"""The methods, as a table: a new one is a row here and a paragraph in the method card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ranp.errors import UsageError, suggest
from ranp.pruning.importance import Reduction

Criterion = Literal["mpmg", "mnmg", "magnitude", "synflow", "grasp", "snip", "none"]
Resource = Literal["flops", "memory", "params", "latency"]
Selection = Literal["global", "layerwise", "random", "weights", "flat"]

DEFAULT_LAMBDA = 11.0  # the paper's value for ShapeNet


@dataclass(frozen=True)
class Method:
    """How neurons are scored, weighed and selected.

    Attributes:
        name: What the method is called.
        about: One line for people.
        criterion: What a neuron's importance is made of.
        reduction: f of Eq. 6, over a neuron's weights.
        balance: Whether Eq. 9 gives all layers the same mean.
        resource: What Eq. 10 reweights by, if it does.
        selection: Ranked over all layers or in each, at random, by single weights, or by one width
            for all layers.
    """

    name: str
    about: str
    criterion: Criterion
    reduction: Reduction = "sum"
    balance: bool = False
    resource: Resource | None = None
    selection: Selection = "global"

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
        if self.criterion == "snip" or (self.criterion, self.reduction) == ("mpmg", "max"):
            return ("abs",)
        if (self.criterion, self.reduction) == ("mnmg", "max"):
            return ("signed",)
        return (self.criterion,) if self.criterion in ("grasp", "synflow") else ()


_TABLE = (
    Method("ranp-f", "RANP by FLOPs: the paper's method", "mpmg", balance=True, resource="flops"),
    Method("ranp-m", "RANP by activation memory", "mpmg", balance=True, resource="memory"),
    Method("ranp-l", "RANP by measured latency", "mpmg", balance=True, resource="latency"),
    Method("weighted", "balanced between layers, without resources", "mpmg", balance=True),
    Method("vanilla", "MPMG-sum: neuron importance as it is", "mpmg"),
    Method("mpmg-mean", "MPMG, mean over a neuron's weights", "mpmg", "mean"),
    Method("mpmg-max", "MPMG, largest of a neuron's weights", "mpmg", "max"),
    Method("mnmg-sum", "magnitude of the neuron mask gradient", "mnmg"),
    Method("mnmg-mean", "MNMG, mean over a neuron's weights", "mnmg", "mean"),
    Method("mnmg-max", "MNMG, largest of a neuron's weights", "mnmg", "max"),
    Method("layerwise", "the same share of every layer", "none", selection="layerwise"),
    Method("random", "neurons drawn at random over all layers", "none", selection="random"),
    Method(
        "snip",
        "single weights, then dead neurons; sparsity of weights",
        "snip",
        selection="weights",
    ),
    Method("magnitude", "L1 norm of a neuron's weights", "magnitude"),
    Method("synflow", "SynFlow in one shot, without data", "synflow"),
    Method("grasp", "GraSP: what keeps gradients flowing", "grasp"),
    Method("flat", "one width for all layers, at the FLOPs of ranp-f", "none", selection="flat"),
)

METHODS = {method.name: method for method in _TABLE}


def find_method(name: str) -> Method:
    """The method of that name, or an error that suggests the closest."""
    if name not in METHODS:
        raise UsageError(f"unknown method '{name}'.{suggest(name, METHODS)}")
    return METHODS[name]
