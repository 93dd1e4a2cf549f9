"""Schemas of what was measured on a machine: times, and the correction of predicted memory."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ranp.schemas.base import File, Name, Positive


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
