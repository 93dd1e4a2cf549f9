"""Reads stored files: a correct hash alone does not make a file valid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ranp.errors import IntegrityError
from ranp.files import read_sealed_json
from ranp.schemas.base import File
from ranp.schemas.cell import CellFile
from ranp.schemas.machine import MemoryCorrectionFile, TimingFile
from ranp.schemas.nnunet import SlimConfiguration
from ranp.schemas.plan import PlanFile
from ranp.schemas.pruning import PruningFile
from ranp.schemas.run import CheckpointFile, DataFile, RunFile, TrainingFile
from ranp.schemas.scores import ScoresFile

FILES: dict[str, tuple[str, type[File]]] = {
    "plan": ("plan", PlanFile),
    "scores": ("scores", ScoresFile),
    "checkpoint": ("checkpoint", CheckpointFile),
    "run": ("configuration", RunFile),
    "data": ("data", DataFile),
    "record": ("record", TrainingFile),
    "pruning": ("pruning record", PruningFile),
    "cell": ("record", CellFile),
    "slim-configuration": ("slim configuration", SlimConfiguration),
    "timing": ("timing", TimingFile),
    "memory-correction": ("memory correction", MemoryCorrectionFile),
}
"""By kind, what a file is called in messages, and what it must hold."""


def read_file(path: str | Path, kind: str) -> dict[str, Any]:
    """Read a sealed JSON file of a kind of `FILES`.

    Raises:
        IntegrityError: The file was changed, is of another kind, or a field of it is not valid.
    """
    content = read_sealed_json(path, FILES[kind][0])
    validate(content, kind, f"'{path}'")
    return content


def parse_metadata(
    metadata: Mapping[str, str], entry: str, kind: str, path: str | Path
) -> dict[str, Any]:
    """Return the JSON object of a kind of `FILES` in an entry of a safetensors file's metadata."""
    try:
        content = json.loads(metadata[entry])
    except (KeyError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise IntegrityError(
            f"'{path}' holds no {kind}: field '{entry}' must be a JSON object; make it again"
        )
    validate({"kind": kind, **content}, kind, f"'{path}'")
    return content


def validate(content: Mapping[str, Any], kind: str, source: str) -> None:
    """Refuse content, read from some source, that is not what a file of its kind holds.

    The error names the first field that is not valid.
    """
    what, schema = FILES[kind]
    stored = content.get("kind"), content.get("schema")
    if stored != (kind, 1):
        raise IntegrityError(
            f"{source} is a {stored[0]} of schema {stored[1]}, expected a {kind} of schema 1"
        )
    try:
        schema.model_validate(content)
    except ValidationError as error:
        raise IntegrityError(
            f"{what} {source} is not valid: {first_problem(error)}; restore it or make it again"
        ) from error


def first_problem(error: Exception) -> str:
    """Return what is wrong with a file in one sentence; of several fields, the first."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"])) or "content"
    return f"field '{field}': {first['msg'].removeprefix('Value error, ')}"
