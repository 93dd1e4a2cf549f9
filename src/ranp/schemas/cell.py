"""Schemas of the cells of experiments: what their tables, races and later cells read of them."""

from __future__ import annotations

from math import isclose
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ranp.schemas.base import (
    Amount,
    Content,
    Costs,
    Count,
    File,
    FileName,
    Hash,
    Number,
    Positive,
    Share,
    Size,
    Texts,
    check_costs,
    check_length,
)
from ranp.schemas.run import Averaged


class _Training(Content):
    """A trained network, by a recipe or by the user's own loop, which has a curve."""

    outcome: Literal["trained", "diverged", "unreachable"]
    accuracy: Number = 0.0
    goal: str = ""
    metrics: dict[str, Averaged] = Field(default_factory=dict)
    epochs: Size = 1
    seconds: Amount = 0.0
    cpu_seconds: Amount = 0.0
    device: str = ""
    reason: str = ""
    gflops: Positive = 0.0
    param_mb: Positive = 0.0
    memory_mb: Positive = 0.0
    step_mb: Positive = 0.0
    neurons: Size = 0
    parameters: Size = 0
    deviation: Number | None = None
    sparsity: Share | None = None
    one_neuron: list[str] = Field(default_factory=list)
    full: Costs | None = None
    curve: list[dict[str, Number]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_whole(self) -> _Training:
        if self.full is not None:
            check_costs(self.full, self, "")
        if self.outcome == "trained":
            expected = _OF_TRAINED if self._own_loop else _OF_TRAINED | _OF_RECIPE
            missing = expected - self.model_fields_set
            if self.full is None and "full" in expected:
                missing |= {"full"}
            if missing:
                raise ValueError(f"'{min(missing)}' is missing")
            self._check_accuracy()
        return self

    @property
    def _own_loop(self) -> bool:
        return "curve" in self.model_fields_set

    def _check_accuracy(self) -> None:
        """Refuse an accuracy that is not the last value of the goal."""
        values = {name: each.last for name, each in self.metrics.items()}
        if self._own_loop:
            values = self.curve[-1] if self.curve else {}
        if self.goal not in values:
            raise ValueError(f"'goal' must be one of the metrics, got '{self.goal}'")
        if self.accuracy != values[self.goal]:
            raise ValueError(f"'accuracy' must be the last {self.goal}, {values[self.goal]}")


_OF_TRAINED = {"accuracy", "goal", "seconds", "cpu_seconds", "device"}
_OF_RECIPE = {"metrics", "full", "deviation", *Costs.model_fields}
"""What a training by a recipe has as well."""


class _Scored(Content):
    batches: Count
    cpu_seconds: Amount = 0.0


class _Generated(Content):
    directory: FileName


class _Counted(Content):
    """A network that was not trained."""

    costs: Costs
    full: Costs
    sparsity: Share | None = None

    @model_validator(mode="after")
    def _never_grows(self) -> _Counted:
        check_costs(self.full, self.costs, "costs.")
        return self


class _Choice(_Counted):
    layers: list[str]
    neurons: list[Size]
    kept: list[Count] | None = None
    emptied: list[str] = Field(default_factory=list)
    budget: Positive = 0.0
    deviation: Number = 0.0
    largest: Share = 0.0
    step_gib: Positive = 0.0

    @model_validator(mode="after")
    def _has_its_layers(self) -> _Choice:
        kept = self.neurons if self.kept is None else self.kept
        check_length(self.neurons, len(self.layers), "neurons")
        check_length(kept, len(self.layers), "kept")
        if any(after > before for before, after in zip(self.neurons, kept, strict=True)):
            raise ValueError("'kept' must be at most 'neurons'")
        for name, found, costs in (
            ("full", sum(self.neurons), self.full),
            ("costs", sum(kept), self.costs),
        ):
            if costs.neurons != found:
                raise ValueError(f"'{name}.neurons' must be the sum {found} of the layers")
        return self


class _Importance(Content):
    layers: list[str]
    importance: list[Annotated[list[Number], Field(min_length=1)]]

    @model_validator(mode="after")
    def _has_its_layers(self) -> _Importance:
        check_length(self.importance, len(self.layers), "importance")
        return self


_KINDS: dict[str, type[Content]] = {
    "training": _Training,
    "loop": _Training,
    "scores": _Scored,
    "loop scores": _Scored,
    "scores of samples": _Scored,
    "generated data": _Generated,
    "choice": _Choice,
    "transfer": _Counted,
    "importance": _Importance,
}
"""What the result of a cell must hold, by its kind; others are the user's own."""


class _Budget(Content):
    resource: str
    amount: Positive


_BUDGETED = {"gflops": "gflops", "memory": "memory_mb"}


class _TrainingCell(Content):
    """What the result of a training follows from."""

    budget: _Budget | None = None
    check_ins: Size | None = None

    def check(self, result: _Training) -> None:
        """Raise `ValueError` for a result that this cell cannot have."""
        if self.check_ins is not None and len(result.curve) > self.check_ins:
            raise ValueError(f"'curve' must have at most the {self.check_ins} check-ins")
        column = None if self.budget is None else _BUDGETED.get(self.budget.resource)
        if self.budget is None or not {"deviation", column} <= result.model_fields_set:
            return
        expected = getattr(result, str(column)) / self.budget.amount - 1
        if result.deviation is None or not isclose(result.deviation, expected, abs_tol=1e-9):
            raise ValueError(f"'deviation' must be {expected:g}, by 'budget' and '{column}'")


class CellFile(File):
    """A cell of an experiment, and what came of it."""

    cell: dict[str, Any]
    result: dict[str, Any]
    seconds: Amount
    versions: Texts
    files: dict[FileName, Hash] = Field(default_factory=dict)
    code: str | None = None

    @field_validator("result")
    @classmethod
    def _is_of_its_kind(cls, result: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        cell = info.data.get("cell", {})
        kind = _KINDS.get(str(cell.get("kind")))
        if kind is not None:
            read = kind.model_validate(result)
            if isinstance(read, _Training):
                _TrainingCell.model_validate(cell).check(read)
        return result
