"""Schema of plans."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ranp.display import MIB
from ranp.schemas.base import (
    Amount,
    Content,
    Costs,
    Count,
    File,
    FullAndSlim,
    Name,
    Seed,
    Share,
    Size,
    Texts,
    Unique,
)
from ranp.schemas.scores import Scoring

NamedShape = Annotated[tuple[Name, list[Count]], Field(strict=False)]


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


class Inputs(Content):
    """What a network is called with: tensors by shape and type, anything else as it is."""

    args: list[Any]
    kwargs: dict[str, Any]

    @model_validator(mode="after")
    def _have_shapes(self) -> Inputs:
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


def _none_for_empty(value: Any) -> Any:
    if value is None:
        raise ValueError("must be an object, which may be empty")
    return None if value == {} else value


# Plans that were made by hand say nothing of costs.
_CostsIfAny = Annotated[FullAndSlim | None, BeforeValidator(_none_for_empty)]


class Settings(Content):
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
    settings: Settings
    costs: _CostsIfAny
    versions: Texts
    protect: list[Name]
    switches: dict[str, list[Any]] = Field(default_factory=dict)
    inputs: Inputs
    layers: Annotated[list[_Layer], Field(min_length=1), Unique]
    shapes: Annotated[list[NamedShape], Unique]

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
        if full.param_mb * MIB / 4 > numbers:
            raise ValueError(f"'costs.full.param_mb' must be of at most {numbers} parameters")
