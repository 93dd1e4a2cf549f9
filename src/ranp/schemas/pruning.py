"""Schema of the record of a pruning: all that its report shows."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from itertools import islice, pairwise
from math import isclose
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ranp.display import MIB
from ranp.schemas.base import (
    Amount,
    Content,
    Costs,
    Count,
    File,
    FileName,
    FullAndSlim,
    Hash,
    Name,
    NamedCount,
    NamedSize,
    Pair,
    Share,
    Size,
    Texts,
    check_length,
)
from ranp.schemas.plan import Inputs, Settings

_UNITS = {
    "gflops": ("flops", 1e9),
    "param_mb": ("parameters", MIB / 4),
    "memory_mb": ("activations", MIB / 4),
    "neurons": ("neurons", 1),
}
"""Of each cost of a network, the column of its rows, and how many of these make one."""


def _never_grows(pair: list[int]) -> list[int]:
    if pair[1] > pair[0]:
        raise ValueError(f"must not grow, got {pair[0]} and {pair[1]}")
    return pair


_FullAndSlimCount = Annotated[Pair, AfterValidator(_never_grows)]


class Row(Content):
    """What a leaf module costs before and after."""

    name: str
    kind: str
    neurons: _FullAndSlimCount
    flops: _FullAndSlimCount
    parameters: _FullAndSlimCount
    activations: _FullAndSlimCount


class RecordLayer(Content):
    """A convolution or linear layer, with the rows up to the next one."""

    name: str
    row: Count
    rows: Annotated[list[Count], Field(min_length=1)]
    neurons: Size
    kept: Count
    fixed: Count
    depthwise: bool

    @model_validator(mode="after")
    def _keeps_its_own(self) -> RecordLayer:
        if not self.fixed <= self.kept <= self.neurons:
            raise ValueError(f"'kept' must be from {self.fixed} to {self.neurons}")
        return self


class Topology(Content):
    """Sizes of the layers' outputs, and which layers feed or are added to which."""

    space: list[list[Size] | None]
    feeds: list[Pair]
    adds: list[Pair]


class Timeline(Content):
    """The memory of a training step."""

    bytes: Annotated[list[Count], Field(min_length=1)]
    backward: Count = 0
    step: Count = 0
    peak: Count = 0
    allowance: Count = 0
    phase: Literal["forward", "backward", "step"] = "forward"
    holders: list[NamedCount] = Field(default_factory=list)

    @model_validator(mode="after")
    def _knows_whose_peak_it_is(self) -> Timeline:
        if self.holders and not {"peak", "phase"} <= self.model_fields_set:
            raise ValueError("'holders' must come with 'peak' and 'phase'")
        # Records of earlier versions do not say where the optimizer's step begins.
        step = self.step if "step" in self.model_fields_set else len(self.bytes)
        if not self.backward <= step <= len(self.bytes):
            raise ValueError(f"'backward' and 'step' must be in order within {len(self.bytes)}")
        if "peak" in self.model_fields_set and self.peak != max(self.bytes):
            raise ValueError(f"'peak' must be the most of 'bytes', got {self.peak}")
        if sum(size for _, size in self.holders) > self.peak:
            raise ValueError(f"'holders' must hold at most the {self.peak} bytes of 'peak'")
        return self


class MeasuredStep(Content):
    """A measured training step."""

    seconds: Amount = 0.0
    peak_bytes: Count = 0


class _Packed(Content):
    """Whole numbers, little-endian."""

    dtype: Literal["u2", "u4"]
    base64: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


class _Explored(Content):
    about: str
    max_sparsity: Share
    kept: _Packed
    flops: _Packed
    parameters: _Packed
    activations: _Packed
    totals: list[Annotated[list[Amount], Field(min_length=4, max_length=4)]]
    empty: list[Pair | None]
    thresholds: list[float | None] | None = None
    quantiles: list[Annotated[list[float], Field(min_length=8, max_length=8)]] | None = None


class Explorer(Content):
    """The choices of every method, at each of some sparsities."""

    sparsities: Annotated[list[Share], Field(min_length=1)]
    methods: dict[str, _Explored]

    @model_validator(mode="after")
    def _has_a_value_for_each_sparsity(self) -> Explorer:
        if any(before >= after for before, after in pairwise(self.sparsities)):
            raise ValueError("'sparsities' must be strictly increasing")
        for name, method in self.methods.items():
            for column in ("totals", "empty", "thresholds"):
                values = getattr(method, column)
                check_length(values, len(self.sparsities), f"methods.{name}.{column}")
            if method.thresholds is not None and not method.quantiles:
                raise ValueError(f"'methods.{name}.quantiles' must come with 'thresholds'")
        return self

    def check_blocks(self, neurons: Sequence[int], full: Costs) -> None:
        """Raise `ValueError` for a table of other blocks than those with so many neurons each."""
        for name, method in self.methods.items():
            place, cells = f"explorer.methods.{name}", len(self.sparsities) * len(neurons)
            for column in ("flops", "parameters", "activations"):
                _unpack(getattr(method, column), cells, f"{place}.{column}")
            kept = iter(_unpack(method.kept, cells, f"{place}.kept"))
            for number, totals in enumerate(method.totals):
                row = list(islice(kept, len(neurons)))
                if any(after > before for before, after in zip(neurons, row, strict=True)):
                    raise ValueError(f"'{place}.kept' must be at most the neurons that there are")
                _check_totals(totals, sum(row), full, f"{place}.totals.{number}")
            check_length(method.quantiles, len(neurons), f"{place}.quantiles")
            if not all(_is_increasing(row[:-1]) for row in method.quantiles or ()):
                raise ValueError(f"'{place}.quantiles' must be increasing, up to the mean")


def _unpack(packed: _Packed, cells: int, name: str) -> array[int]:
    """Return the numbers of a packed table; raise `ValueError` for none, or another count."""
    values = array({"u2": "H", "u4": "I"}[packed.dtype])
    try:
        values.frombytes(base64.b64decode(packed.base64))
    except ValueError as error:
        raise ValueError(f"'{name}.base64' must be that of whole numbers") from error
    if sys.byteorder == "big":
        values.byteswap()
    check_length(values, cells, name)
    return values


def _is_increasing(values: Sequence[float]) -> bool:
    """Whether values increase, as far as six digits of them can tell."""
    return all(a <= b or isclose(a, b, rel_tol=1e-5) for a, b in pairwise(values))


def _check_totals(totals: Sequence[float], kept: int, full: Costs, name: str) -> None:
    """Raise `ValueError` for a row of totals that cannot be those of a part of a network."""
    most = (full.gflops, full.param_mb, full.memory_mb)
    if any(t > m and not isclose(t, m) for t, m in zip(totals, most, strict=False)):
        raise ValueError(f"'{name}' must be at most what the full network costs")
    if totals[-1] != kept:
        raise ValueError(f"'{name}.3' must be the sum {kept} of 'kept', got {totals[-1]:g}")


def _only_with_sparsities(value: Any) -> Any:
    return None if isinstance(value, dict) and "sparsities" not in value else value


# An earlier version had no table, and reports leave out what it had.
_ExplorerIfAny = Annotated[Explorer | None, BeforeValidator(_only_with_sparsities)]


def _check_numbers(numbers: Sequence[int], count: int, name: str) -> None:
    """Raise `ValueError` for numbers that are not below a count."""
    if numbers and max(numbers) >= count:
        raise ValueError(f"'{name}' must be below {count}, got {max(numbers)}")


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


class TrainingStep(Content):
    """The step that a network is fitted to."""

    batch: Size
    input: Annotated[list[Size], Field(min_length=1)]
    precision: Literal["32", "bf16", "16"]
    device: Name


class _Step(TrainingStep):
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
    settings: Settings
    protect: list[str] = Field(default_factory=list)
    inputs: Inputs
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
    explorer: _ExplorerIfAny = None
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
            _check_numbers([i for pair in pairs for i in pair], layers, f"topology.{name}")
        for layer in self.layers:
            _check_numbers([layer.row, *layer.rows], len(self.rows), f"layers.{layer.name}.rows")
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
