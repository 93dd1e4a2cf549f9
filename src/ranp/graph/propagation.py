"""The label pass: once over a recorded forward, to find out which channels belong together.

The rule of every operation says how the labels of its inputs become those of its outputs, and
unites what must live or die together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeVar

import numpy as np
from torch import Tensor, nn

from ranp.errors import RanpError, TraceError, name_settings
from ranp.graph.labels import Dim, Dims, LabelArray, LabelSpace, unlabelled
from ranp.graph.operation import CARRIERS, RULES, Operation
from ranp.graph.recording import ModuleBegin, ModuleEnd, RecordedOperation, Recording
from ranp.graph.statistics import Statistics
from ranp.graph.tracing import Site, describe_place
from ranp.user_code import describe_failure

IS_OUTPUT = "it is the network's output"
"""Why the output channels of a network are pinned."""

Extent = tuple[int | LabelArray, ...]
Reading = TypeVar("Reading", bound=Hashable)


@dataclass
class Decisions:
    """What trials have taught about a network.

    Attributes:
        readings: The possible readings of an ambiguous operation, in the order to try them.
        rejected: Those that a trial has shown to be wrong.
        failures: What the trial network did when the last of them was rejected.
        pinned_sites: Operations whose channels must all stay.
        pinned_kinds: Module classes whose inputs and weights must all stay.
    """

    readings: dict[Site, list[Hashable]] = field(default_factory=lambda: defaultdict(list))
    rejected: dict[Site, set[Hashable]] = field(default_factory=lambda: defaultdict(set))
    failures: dict[Site, str] = field(default_factory=dict)
    pinned_sites: set[Site] = field(default_factory=set)
    pinned_kinds: set[str] = field(default_factory=set)


class Misreading(TraceError):
    """A reading of an ambiguous operation laid channels along a dimension of space.

    Attributes:
        site: Where the operation stands.
        reading: How it was read.
    """

    def __init__(self, site: Site, reading: Hashable) -> None:
        kind, _, name = site
        super().__init__(f"{name.removeprefix('aten::')} in {kind} lays channels along space")
        self.site = site
        self.reading = reading


@dataclass(frozen=True)
class Record:
    """One operation of the pass, for the check pass to compare with.

    Attributes:
        name: The operation's name.
        site: Where it stands in the code.
        reading: How it was read, if there was a choice.
        numbers: Its scalar arguments that its values depend on, by name.
        outputs: Shape and labels of each output tensor.
    """

    name: str
    site: Site
    reading: Hashable | None
    numbers: Mapping[str, float]
    outputs: tuple[tuple[tuple[int, ...], Dims], ...]


@dataclass(frozen=True)
class LayerCall:
    """A call of a convolution or linear layer: the labels of its neurons and of its inputs."""

    name: str
    out: LabelArray
    inp: LabelArray
    groups: int


@dataclass(frozen=True)
class ModuleCall:
    """A call of a leaf module: extents of its first input and of its first output tensor."""

    name: str
    kind: str
    inputs: Extent
    output: Extent


@dataclass(frozen=True)
class ModuleChannels:
    """A call of a module that has modules: channels of all tensors that enter and leave it."""

    name: str
    inputs: Extent
    outputs: Extent


@dataclass(frozen=True)
class Contraction:
    """A sum of products (convolution, matrix product); its multiply-adds are prod(extent)."""

    module: str
    extent: Extent


@dataclass(frozen=True)
class Pass:
    """Everything that is found in one forward."""

    records: list[Record] = field(default_factory=list)
    layers: list[LayerCall] = field(default_factory=list)
    calls: list[ModuleCall] = field(default_factory=list)
    channels: list[ModuleChannels] = field(default_factory=list)
    contractions: list[Contraction] = field(default_factory=list)


class Propagator:
    """Propagates labels through a recorded forward."""

    def __init__(
        self, model: nn.Module, space: LabelSpace, decisions: Decisions, protect: Sequence[str]
    ) -> None:
        self.model = model
        self.space = space
        self.decisions = decisions
        self.protect = protect
        self.path = ""
        self._found = Pass()
        self._weights: Mapping[str, Tensor] = {}
        # By the tensor's id: the recording keeps all tensors alive.
        self._dims: dict[int, Dims] = {}
        # The name of the parameter or buffer that a tensor is, or was computed from alone.
        self._origin: dict[int, str] = {}
        self._statistics = Statistics(space, self.dims)
        self._site: Site = ("", 0, "")
        self._reading: Hashable | None = None
        # Labels that a reading laid along one of several axes, with the reading and its site.
        self._laid: list[tuple[LabelArray, Site, Hashable]] = []

    def run(self, recording: Recording, labels: Mapping[str, Dims]) -> Pass:
        """Go through one forward."""
        self._weights = recording.tensors
        for name, tensor in self._weights.items():
            self._dims[id(tensor)] = labels[name]
            self._origin[id(tensor)] = name
        for event in recording.events:
            self.path = event.path
            if isinstance(event, RecordedOperation):
                self._apply(event)
            elif isinstance(event, ModuleBegin):
                self._begin(event)
            else:
                self._end(event)
        for dim in (d for tensor in recording.outputs for d in self.dims(tensor)):
            self.space.pin(dim, IS_OUTPUT)
        self._statistics.end(recording.outputs)
        return self._found

    @property
    def place(self) -> str:
        """The module that is running, for messages."""
        return describe_place(self.path)

    # What rules use.

    def dims(self, tensor: Tensor) -> Dims:
        """Return the labels of a tensor's dimensions."""
        known = self._dims.get(id(tensor))
        return unlabelled(tensor.shape) if known is None else known

    def extent(self, tensor: Tensor) -> Extent:
        """Return a tensor's shape, with labels in place of the sizes that can shrink."""
        pairs = zip(tensor.shape, self.dims(tensor), strict=True)
        return tuple(size if dim is None else dim for size, dim in pairs)

    def is_weight(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a parameter or buffer, or computed from such alone."""
        return id(tensor) in self._origin

    def pin(self, dim: Dim, reason: str) -> None:
        """Pin the slots of a dimension, naming the running module."""
        self.space.pin(dim, f"{reason} in {self.place}")

    def pin_tensors(self, tensors: Iterable[Tensor], reason: str) -> None:
        """Pin every dimension of some tensors."""
        for tensor in tensors:
            for dim in self.dims(tensor):
                self.pin(dim, reason)

    def pin_space(self, dims: Iterable[Dim], reason: str) -> None:
        """Pin dimensions of space; raise `Misreading` if a reading laid their slots there."""
        for dim in dims:
            if dim is None:
                continue
            for labels, site, reading in self._laid:
                if np.isin(self.space.find(dim), self.space.find(labels)).any():
                    raise Misreading(site, reading)
            self.pin(dim, reason)

    def statistic(self, operation: Operation, dim: Dim, reason: str) -> None:
        """Take an operation's outputs for statistics over a dimension, as norms have them.

        Its slots are pinned as soon as one of them goes into anything but these slots.
        """
        if dim is not None:
            self._statistics.add(operation.outputs, dim, f"{reason} in {self.place}")

    def choose(self, readings: Sequence[Reading]) -> Reading | None:
        """Return which of several readings of this operation to take; None when all have failed.

        A reshape does not say which of its factors will shrink with the channels. The first
        reading is taken until a trial shows that it is wrong at this site.
        """
        order = self.decisions.readings[self._site]
        order += [reading for reading in readings if reading not in order]
        rejected = self.decisions.rejected[self._site]
        left = (r for r in order if r in readings and r not in rejected)
        self._reading = next(left, None)
        return self._reading  # type: ignore[return-value]

    def lay(self, labels: LabelArray) -> None:
        """Remember that the reading just chosen laid slots along one of several axes."""
        self._laid.append((labels, self._site, self._reading))

    def add_layer(self, weight: Tensor, out: LabelArray, inp: LabelArray, groups: int) -> None:
        """Record that a convolution or linear map was applied."""
        name = self._layer_name(weight)
        self.space.mark_neurons(out)
        if any(fnmatchcase(name, pattern) for pattern in self.protect):
            self.space.pin(out, "it is protected by the user")
        self._found.layers.append(LayerCall(name, out, inp, groups))

    def _layer_name(self, weight: Tensor) -> str:
        """Return the running layer; for a weight used elsewhere its owner, else its own name."""
        if is_layer(self.model.get_submodule(self.path)):
            return self.path
        origin = self._origin.get(id(weight), self.path)
        owner = origin.rpartition(".")[0]
        return owner if is_layer(self.model.get_submodule(owner)) else origin

    def add_contraction(self, *extent: int | LabelArray) -> None:
        """Record a sum of products for the resource counters."""
        self._found.contractions.append(Contraction(self.path, extent))

    # What happens during the forward.

    def _begin(self, call: ModuleBegin) -> None:
        """Pin what enters a module that was found to refuse other channel numbers."""
        if call.kind in self.decisions.pinned_kinds:
            reason = "channel numbers are fixed by the code"
            self.pin_tensors(call.inputs, reason)
            own = (t for n, t in self._weights.items() if n.rpartition(".")[0] == call.path)
            self.pin_tensors(own, reason)

    def _end(self, call: ModuleEnd) -> None:
        """Record calls of leaf modules for the resource counters, channels of all others."""
        if ".parametrizations" in call.path:
            return
        if not call.is_leaf:
            sides = [
                tuple(self.extent(tensor)[1] if tensor.dim() > 1 else 0 for tensor in side)
                for side in (call.inputs, call.outputs)
            ]
            self._found.channels.append(ModuleChannels(call.path, *sides))
        elif call.inputs and call.outputs:
            kind = call.kind.removeprefix("Parametrized")
            extents = self.extent(call.inputs[0]), self.extent(call.outputs[0])
            self._found.calls.append(ModuleCall(call.path, kind, *extents))

    def _apply(self, recorded: RecordedOperation) -> None:
        operation = recorded.operation
        self._site, self._reading = recorded.site, None
        outputs = self._apply_rule(operation)
        if self._site in self.decisions.pinned_sites:
            inputs = [self.dims(tensor) for tensor in operation.inputs]
            for dim in (d for dims in (*inputs, *outputs) for d in dims):
                self.pin(dim, f"channel numbers are fixed by the code ({operation.short_name})")
        described = []
        for tensor, dims in zip(operation.outputs, outputs, strict=True):
            assert len(dims) == tensor.dim(), (operation.name, dims, tensor.shape)
            self._dims[id(tensor)] = dims
            described.append((tuple(tensor.shape), dims))
        self._inherit_origin(operation)
        self._found.records.append(
            Record(operation.name, self._site, self._reading, recorded.numbers, tuple(described))
        )

    def _inherit_origin(self, operation: Operation) -> None:
        origins = [self._origin.get(id(tensor)) for tensor in operation.inputs]
        first = origins[0] if origins and None not in origins else None
        for tensor in operation.outputs:
            if first is not None:
                self._origin[id(tensor)] = first
            else:  # an operation in place may have mixed an activation into a weight
                self._origin.pop(id(tensor), None)

    def _apply_rule(self, operation: Operation) -> list[Dims]:
        pointwise = RULES["aten::pointwise"] if operation.is_pointwise else None
        rule = RULES.get(operation.name, pointwise)
        self._statistics.follow(operation, carries=rule in CARRIERS)
        if rule is None:
            self._refuse_unless_fixed(operation)
            return [unlabelled(tensor.shape) for tensor in operation.outputs]
        try:
            result = rule(self, operation)
        except RanpError:
            raise
        except Exception as error:
            raise TraceError(
                f"the rule for {operation.name} fails in {self.place} ({describe_failure(error)}); "
                "please report it, and protect the layers that feed this operation meanwhile"
            ) from error
        return result if isinstance(result, list) else [result] * len(operation.outputs)

    def _refuse_unless_fixed(self, operation: Operation) -> None:
        """Refuse an operation without a rule unless it meets slots that stay anyway."""
        labelled = [d for t in operation.inputs for d in self.dims(t) if d is not None]
        free = [dim[self.space.prunable(dim)] for dim in labelled]
        met = {root for dim in free for root in self.space.find(dim).tolist()}
        if met:
            layers = self._found.layers
            feeding = [c.name for c in layers if met & set(self.space.find(c.out).tolist())]
            protect = name_settings(protect=list(dict.fromkeys(feeding)))
            raise TraceError(
                f"no rule for the operation {operation.name} in {self.place}: either protect the "
                f"layers that feed it ({protect}) or add a rule with ranp.graph.rule"
            )
        for dim in labelled:
            self.pin(dim, f"it meets {operation.name}, which has no rule,")


def is_layer(module: nn.Module) -> bool:
    """Return whether a module is a convolution or linear layer."""
    return isinstance(module, (nn.Linear, nn.modules.conv._ConvNd))
