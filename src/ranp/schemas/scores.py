"""Schema of scores: the metadata beside their tensors."""

from __future__ import annotations

from typing import Annotated, Literal

from ranp.schemas.base import Content, Count, File, Hash, NamedSize, Share, Unique


class Scoring(Content):
    """How a network was scored; the command line adds where its batches are from."""

    weights: str | None = None
    seed: Count | None = None
    per: Literal["batch", "sample"] | None = None
    ranp: str | None = None
    batches: Count | None = None
    agreement: Share | None = None
    batches_needed: Count | None = None


class ScoresFile(File):
    """The metadata of scores."""

    batches: Count
    fan_in: Annotated[list[NamedSize], Unique]
    settings: Scoring
    fingerprint: Hash
