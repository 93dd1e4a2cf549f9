"""What the tables of a pruning record must hold, and the types that all schemas are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

# What is counted, is counted in 64 bits; nothing that is measured comes near that.
_MOST = 2**63 - 1
Count = Annotated[int, Field(ge=0, le=_MOST)]
Size = Annotated[int, Field(ge=1, le=_MOST)]
Seed = Annotated[int, Field(ge=-_MOST, le=2**64 - 1)]
Amount = Annotated[float, Field(ge=0, le=_MOST)]
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
    """What a network costs."""

    gflops: Amount
    param_mb: Amount
    memory_mb: Amount
    neurons: Count


class FullAndSlim(Content):
    """What a network costs before and after."""

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
        return self


class MeasuredStep(Content):
    """A measured training step."""

    seconds: Amount = 0.0
    peak_bytes: Count = 0


class _Packed(Content):
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
        for name, method in self.methods.items():
            for column in ("totals", "empty", "thresholds"):
                values = getattr(method, column)
                check_length(values, len(self.sparsities), f"methods.{name}.{column}")
            if method.thresholds is not None and not method.quantiles:
                raise ValueError(f"'methods.{name}.quantiles' must come with 'thresholds'")
        return self


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
