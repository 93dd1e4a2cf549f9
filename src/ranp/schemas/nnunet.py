"""Schema of what nnU-Net's plans hold of a slim network."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from ranp.schemas.base import Amount, Content, File, Name, Positive, Size
from ranp.schemas.plan import PlanFile
from ranp.schemas.pruning import TrainingStep


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
    training: TrainingStep
    memory: _Bytes
    nnunet_estimate: _Memory | _Nothing
    instead: _Alternative | _Nothing

    @model_validator(mode="after")
    def _is_trained_as_traced(self) -> SlimConfiguration:
        traced = PlanFile.model_validate(self.plan).inputs.args
        if len(traced) == 1 and traced[0].get("tensor", [])[1:] != self.training.input:
            raise ValueError("'training.input' must be what the plan was made with")
        return self
