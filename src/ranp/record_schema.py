"""What the tables of a pruning record must hold, and the types that all schemas are made of."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise
from math import isclose
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

# What is counted, is counted in 64 bits; nothing that is measured comes near that.
_MOST = 2**63 - 1
Count = Annotated[int, Field(ge=0, le=_MOST)]
Size = Annotated[int, Field(ge=1, le=_MOST)]
Seed = Annotated[int, Field(ge=-_MOST, le=2**64 - 1)]
Amount = Annotated[float, Field(ge=0, le=_MOST)]
Positive = Annotated[float, Field(gt=0, le=_MOST)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$")]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Texts = dict[str, str]
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]
# JSON has lists only, which a strict tuple is not made of.
NamedCount = Annotated[tuple[str, Count], Field(strict=False)]


def _inside(name: str) -> str:
    if not name or name.startswith("/") or ".." in name.split("/"):
        raise ValueError("must be a path below the directory of the file")
    return name


FileName = Annotated[str, AfterValidator(_inside)]


class Content(BaseModel):
    """Fields that a reader relies on; a file may hold more."""

    model_config = ConfigDict(strict=True, extra="allow")


class File(Content):
    """Base of all files."""

    schema_: Annotated[int, Field(alias="schema", ge=1, le=1)]


class Costs(Content):
    """What a network costs; none is without neurons, and none costs nothing."""

    gflops: Positive
    param_mb: Positive
    memory_mb: Positive
    neurons: Size


class FullAndSlim(Content):
    """What a network costs before and after; there is no third one."""

    model_config = ConfigDict(extra="forbid")

    full: Costs
    slim: Costs

    @model_validator(mode="after")
    def _never_grows(self) -> FullAndSlim:
        check_costs(self.full, self.slim)
        return self


def _none_for_empty(value: Any) -> Any:
    if value is None:
        raise ValueError("must be an object, which may be empty")
    return None if value == {} else value


# Plans that were made by hand say nothing of costs.
CostsIfAny = Annotated[FullAndSlim | None, BeforeValidator(_none_for_empty)]


class Scoring(Content):
    """How a network was scored; the command line adds where its batches are from."""

    weights: str | None = None
    seed: Count | None = None
    per: Literal["batch", "sample"] | None = None
    ranp: str | None = None
    batches: Count | None = None
    agreement: Share | None = None
    batches_needed: Count | None = None


class Row(Content):
    """What a leaf module costs before and after."""

    name: str
    kind: str
    neurons: Pair
    flops: Pair
    parameters: Pair
    activations: Pair

    @model_validator(mode="after")
    def _never_grows(self) -> Row:
        for column in ("neurons", "flops", "parameters", "activations"):
            before, after = getattr(self, column)
            if after > before:
                raise ValueError(f"'{column}' must not grow, got {before} and {after}")
        return self


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
            kept = _unpack(method.kept, cells, f"{place}.kept")
            for number, totals in enumerate(method.totals):
                row = kept[number * len(neurons) : (number + 1) * len(neurons)]
                if any(after > before for before, after in zip(neurons, row, strict=True)):
                    raise ValueError(f"'{place}.kept' must be at most the neurons that there are")
                _check_totals(totals, sum(row), full, f"{place}.totals.{number}")
            check_length(method.quantiles, len(neurons), f"{place}.quantiles")
            if not all(_is_increasing(row[:-1]) for row in method.quantiles or ()):
                raise ValueError(f"'{place}.quantiles' must be increasing, up to the mean")


def _unpack(packed: _Packed, cells: int, name: str) -> list[int]:
    """Return the numbers of a packed table; raise `ValueError` for none, or another count."""
    values = array({"u2": "H", "u4": "I"}[packed.dtype])
    try:
        values.frombytes(base64.b64decode(packed.base64))
    except ValueError as error:
        raise ValueError(f"'{name}.base64' must be that of whole numbers") from error
    if sys.byteorder == "big":
        values.byteswap()
    check_length(values, cells, name)
    return values.tolist()


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
ExplorerIfAny = Annotated[Explorer | None, BeforeValidator(_only_with_sparsities)]


def check_costs(full: Costs, slim: Costs) -> None:
    """Raise `ValueError` for a slim network that costs more than the full one."""
    for name in Costs.model_fields:
        before, after = getattr(full, name), getattr(slim, name)
        if after > before:
            raise ValueError(f"'slim.{name}' must be at most {before:g} as in full, got {after:g}")


def check_length(values: Sequence[Any] | None, expected: int, name: str) -> None:
    """Raise `ValueError` for a list that is not as long as expected; None passes."""
    if values is not None and len(values) != expected:
        raise ValueError(f"'{name}' must have {expected} values, got {len(values)}")


def check_numbers(numbers: Sequence[int], count: int, name: str) -> None:
    """Raise `ValueError` for numbers that are not below a count."""
    if numbers and max(numbers) >= count:
        raise ValueError(f"'{name}' must be below {count}, got {max(numbers)}")
