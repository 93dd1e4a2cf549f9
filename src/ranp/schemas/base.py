"""Types that all schemas are made of, and what several of them check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

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
NamedSize = Annotated[tuple[str, Size], Field(strict=False)]


def _inside(name: str) -> str:
    if not name or name.startswith("/") or ".." in name.split("/"):
        raise ValueError("must be a path below the directory of the file")
    return name


FileName = Annotated[str, AfterValidator(_inside)]


def _unique(items: list[Any]) -> list[Any]:
    names = [item[0] if isinstance(item, tuple) else getattr(item, "name", item) for item in items]
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"'{name}' must appear once")
    return items


Unique = AfterValidator(_unique)
"""Of a list: no name is in it twice, alone or as the first of a pair."""


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


def check_costs(full: Costs, other: Any, place: str = "slim.") -> None:
    """Raise `ValueError` for a network, at some place in a file, that costs more than the full."""
    for name in Costs.model_fields:
        most, found = getattr(full, name), getattr(other, name)
        if found > most:
            raise ValueError(f"'{place}{name}' must be at most {most:g} as in full, got {found:g}")


def check_length(values: Sized | None, expected: int, name: str) -> None:
    """Raise `ValueError` for a list that is not as long as expected; None passes."""
    if values is not None and len(values) != expected:
        raise ValueError(f"'{name}' must have {expected} values, got {len(values)}")
