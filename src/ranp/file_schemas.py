"""Schemas of the files that ranp writes, one class for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from math import isclose, prod
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.functional_validators import AfterValidator

from ranp.record_schema import (
    Amount,
    Content,
    Costs,
    CostsIfAny,
    Count,
    ExplorerIfAny,
    File,
    FileName,
    FullAndSlim,
    Hash,
    MeasuredStep,
    Name,
    Positive,
    RecordLayer,
    Row,
    Scoring,
    Seed,
    Share,
    Size,
    Texts,
    Timeline,
    Topology,
    check_length,
    check_numbers,
)


def _unique(items: list[Any]) -> list[Any]:
    names = [item.name if isinstance(item, _Layer) else item[0] for item in items]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ValueError(f"'{doubled}' must appear once")
    return items


NamedShape = Annotated[tuple[Name, list[Count]], Field(strict=False)]
NamedSize = Annotated[tuple[str, Size], Field(strict=False)]


class _Layer(Content):
    name: str
    neurons: Size
    kept: Annotated[list[Count], Field(min_length=1)]

    @model_validator(mode="after")
    def _in_order(self) -> _Layer:
        if self.kept != sorted(set(self.kept)) or self.kept[-1] >= self.neurons:
            raise ValueError(f"'kept' must be strictly increasing and below {self.neurons}")
        return self


def _check_tensors(value: Any) -> int:
    """Return the number of tensors in a network's input; raise `ValueError` for anything else."""
    if isinstance(value, Mapping):
        if "mapping" in value:
            return sum(map(_check_tensors, _Mapping.model_validate(value).mapping.values()))
        _Tensor.model_validate(value)
        return 1
    return sum(map(_check_tensors, value)) if isinstance(value, list) else 0


class _Inputs(Content):
    args: list[Any]
    kwargs: dict[str, Any]

    @model_validator(mode="after")
    def _have_shapes(self) -> _Inputs:
        if not _check_tensors([*self.args, *self.kwargs.values()]):
            raise ValueError("there must be an input: a tensor's shape")
        return self


class _Mapping(Content):
    mapping: dict[str, Any]


_DTYPES = r"^(bool|u?int(8|16|32|64)|b?float16|float(32|64)|complex(32|64|128))$"


class _Tensor(Content):
    tensor: Annotated[list[Size], Field(min_length=1)]
    dtype: Annotated[str, Field(pattern=_DTYPES)]

    @model_validator(mode="after")
    def _could_be_held(self) -> _Tensor:
        if prod(self.tensor) > _MOST_NUMBERS:
            raise ValueError(f"a tensor must have at most {_MOST_NUMBERS} numbers")
        return self


_MOST_NUMBERS = 2**48
_PER_MIB = 2**20 / 4
_UNITS = {
    "gflops": ("flops", 1e9),
    "param_mb": ("parameters", _PER_MIB),
    "memory_mb": ("activations", _PER_MIB),
    "neurons": ("neurons", 1),
}
"""Of each cost of a network, the column of its rows, and how many of these make one."""


class _Settings(Content):
    """What a choice was made with; None where that says something, left out where it is unknown."""

    sparsity: Share | None = None
    seed: Seed | None = None
    lam: Annotated[Amount, Field(alias="lambda")] = 0.0
    resource: Name | dict[str, Amount] | None = None
    coupling: Literal["paper", "sum", "max", "mean"] = "paper"
    floor: Count | Literal["auto"] = 0
    multiple: Size = 1
    scoring: Scoring | None = None


class PlanFile(File):
    """Which neurons of each layer stay."""

    method: Name
    network: Name | None
    settings: _Settings
    costs: CostsIfAny
    versions: Texts
    protect: list[Name]
    switches: dict[str, list[Any]] = Field(default_factory=dict)
    inputs: _Inputs
    layers: Annotated[list[_Layer], Field(min_length=1), AfterValidator(_unique)]
    shapes: Annotated[list[NamedShape], AfterValidator(_unique)]

    @model_validator(mode="after")
    def _go_together(self) -> PlanFile:
        costs = self.settings.resource
        layers = {layer.name for layer in self.layers}
        wrong = set(costs) ^ layers if isinstance(costs, dict) else set()
        if wrong:
            raise ValueError(f"'settings.resource' must have the layers, unlike '{min(wrong)}'")
        floor = 0 if self.settings.floor == "auto" else self.settings.floor
        for layer in self.layers:
            if len(layer.kept) < min(floor, layer.neurons):
                raise ValueError(f"'settings.floor' must be kept, unlike in '{layer.name}'")
        if self.costs is not None:
            self._check_costs(self.costs.full, self.costs.slim)
        return self

    def _check_costs(self, full: Costs, slim: Costs) -> None:
        """Refuse costs that are not those of the layers and parameters."""
        neurons = sum(layer.neurons for layer in self.layers)
        kept = sum(len(layer.kept) for layer in self.layers)
        if (full.neurons, slim.neurons) != (neurons, kept):
            raise ValueError(f"'costs' must be of {neurons} neurons, and of {kept} that are kept")
        numbers = sum(prod(shape) for _, shape in self.shapes)
        if full.param_mb * _PER_MIB > numbers:
            raise ValueError(f"'costs.full.param_mb' must be of at most {numbers} parameters")


class ScoresFile(File):
    """The metadata of scores, beside their tensors."""

    batches: Count
    fan_in: Annotated[list[NamedSize], AfterValidator(_unique)]
    settings: Scoring
    fingerprint: Hash


class _Budgeted(Content):
    resource: str
    full: str | None
    slim: str
    budget: str | None
    shares: Annotated[list[Amount | None], Field(min_length=2, max_length=2)]

    @model_validator(mode="after")
    def _has_a_share_of_its_budget(self) -> _Budgeted:
        if self.budget is not None and self.shares[1] is None:
            raise ValueError("'shares' must include that of the budget")
        return self


class _NnunetStep(Content):
    batch: Size
    input: Annotated[list[Size], Field(min_length=1)]
    precision: Literal["32", "bf16", "16"]
    device: Name


class _Step(_NnunetStep):
    optimizer: str
    recompute: bool
    loss: str


class _Fit(Content):
    step: _Step
    rows: list[_Budgeted]
    verdict: str
    methods: list[Texts]
    notes: list[str]


class PruningFile(File):
    """The record of a pruning."""

    network: Name | None
    method: Name
    settings: _Settings
    protect: list[str] = Field(default_factory=list)
    inputs: _Inputs
    fingerprint: Hash
    plan: Hash | None = None
    command: str | None
    data: str | None = None
    environment: Texts
    files: dict[FileName, Hash]
    totals: FullAndSlim
    rows: list[Row]
    not_counted: list[str]
    layers: Annotated[list[RecordLayer], Field(min_length=1)]
    blocks: list[NamedSize] = Field(default_factory=list)
    topology: Topology
    quantiles: list[Amount] = Field(default_factory=list)
    explorer: ExplorerIfAny = None
    measured: dict[Literal["full", "slim"], MeasuredStep] = Field(default_factory=dict)
    timelines: dict[str, Timeline] = Field(default_factory=dict)
    fit: _Fit | None = None
    warnings: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _go_together(self) -> PruningFile:
        layers = len(self.layers)
        if self.blocks and sum(size for _, size in self.blocks) != layers:
            raise ValueError(f"'blocks' must have {layers} layers together")
        check_length(self.topology.space, layers, "topology.space")
        for name, pairs in (("feeds", self.topology.feeds), ("adds", self.topology.adds)):
            check_numbers([i for pair in pairs for i in pair], layers, f"topology.{name}")
        for layer in self.layers:
            check_numbers([layer.row, *layer.rows], len(self.rows), f"layers.{layer.name}.rows")
        self._check_totals()
        self._check_explorer()
        return self

    def _check_explorer(self) -> None:
        """Refuse a table of other layers, and one without the sparsity that was chosen."""
        if self.explorer is None:
            return
        chosen, neurons = self.settings.sparsity, [layer.neurons for layer in self.layers]
        if chosen is not None and chosen not in self.explorer.sparsities:
            raise ValueError(f"'explorer.sparsities' must have 'settings.sparsity', {chosen}")
        if self.blocks:
            of_layers = iter(neurons)
            neurons = [sum(islice(of_layers, size)) for _, size in self.blocks]
        self.explorer.check_blocks(neurons, self.totals.full)

    def _check_totals(self) -> None:
        """Refuse totals that are not the sums of the rows and layers that are shown with them."""
        for place, costs in enumerate((self.totals.full, self.totals.slim)):
            for name, (column, unit) in _UNITS.items():
                total = sum(getattr(row, column)[place] for row in self.rows) / unit
                if not isclose(getattr(costs, name), total):
                    network = ("full", "slim")[place]
                    raise ValueError(f"'totals.{network}.{name}' must be the sum {total} of 'rows'")
        for layer in self.layers:
            row = self.rows[layer.row]
            if (row.name, row.neurons) != (layer.name, [layer.neurons, layer.kept]):
                raise ValueError(f"'layers.{layer.name}' must have name and neurons of its row")
        if sorted(row for layer in self.layers for row in layer.rows) != list(
            range(len(self.rows))
        ):
            raise ValueError("'layers' must have each of the rows once")


class _Alternative(Content):
    patch_size: Annotated[list[Size], Field(min_length=1)]
    batch_size: Size
    estimate: Amount


class _Memory(Content):
    full: Positive
    slim: Positive

    @model_validator(mode="after")
    def _never_grows(self) -> _Memory:
        if self.slim > self.full:
            raise ValueError(f"'slim' must be at most {self.full:g} as in full, got {self.slim:g}")
        return self


class _Bytes(_Memory):
    full: Size
    slim: Size


_Nothing = Annotated[dict[str, Any], Field(max_length=0)]


class SlimConfiguration(File):
    """What nnU-Net's plans hold of a slim network."""

    network_class_name: Annotated[str, Field(pattern=r"^\w+(\.\w+)+$")]
    plan: dict[str, Any]
    source: Name
    command: str
    training: _NnunetStep
    memory: _Bytes
    nnunet_estimate: _Memory | _Nothing
    instead: _Alternative | _Nothing

    @model_validator(mode="after")
    def _is_trained_as_traced(self) -> SlimConfiguration:
        traced = PlanFile.model_validate(self.plan).inputs.args
        if len(traced) == 1 and traced[0].get("tensor", [])[1:] != self.training.input:
            raise ValueError("'training.input' must be what the plan was made with")
        return self


class TimingFile(File):
    """Measured seconds."""

    what: dict[str, Any]
    seconds: Annotated[dict[str, Positive], Field(min_length=1)]


class MemoryCorrectionFile(File):
    """What predicted memory is multiplied with on a device."""

    device: Name
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    factors: Annotated[
        dict[Literal["32", "bf16", "16"], Annotated[float, Field(ge=1, le=100)]],
        Field(min_length=1),
    ]
