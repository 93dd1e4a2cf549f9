"""Schemas of the files that ranp writes: a correct hash alone does not make a file valid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic.functional_validators import AfterValidator

from ranp.errors import IntegrityError
from ranp.files import canonical_json, json_sha256, read_sealed_json, sha256
from ranp.record_schema import (
    Amount,
    Content,
    Count,
    ExplorerIfAny,
    RecordLayer,
    Row,
    Share,
    Size,
    Timeline,
    Topology,
    check_length,
    check_numbers,
)


def _unique(items: list[Any]) -> list[Any]:
    names = [item.name if isinstance(item, _Layer) else item[0] for item in items]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ValueError(f"'{doubled}' is there twice")
    return items


Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Texts = dict[str, str]
NamedShape = Annotated[tuple[str, list[Count]], Field(strict=False)]
NamedSize = Annotated[tuple[str, Size], Field(strict=False)]


class _Layer(Content):
    name: str
    neurons: Size
    kept: Annotated[list[Count], Field(min_length=1)]

    @model_validator(mode="after")
    def _in_order(self) -> _Layer:
        if self.kept != sorted(set(self.kept)) or self.kept[-1] >= self.neurons:
            raise ValueError(f"'kept' must rise, each number once, from 0 to {self.neurons - 1}")
        return self


class _Inputs(Content):
    args: list[Any]
    kwargs: dict[str, Any]

    @model_validator(mode="after")
    def _have_shapes(self) -> _Inputs:
        if not self.args and not self.kwargs:
            raise ValueError("there must be an input")
        for value in [*self.args, *self.kwargs.values()]:
            if isinstance(value, Mapping) and "tensor" in value:
                _Tensor.model_validate(value)
        return self


class _Tensor(Content):
    tensor: Annotated[list[Size], Field(min_length=1)]
    dtype: Annotated[str, Field(pattern=r"^(bool|complex|u?int|b?float)\d*$")]


class _Settings(Content):
    sparsity: Share | None = None
    seed: int | None = None
    lam: Annotated[Amount | None, Field(alias="lambda")] = None
    coupling: str | None = None
    floor: Count | str | None = None
    multiple: Size | None = None
    scoring: dict[str, Any] | None = None


class _File(Content):
    schema_: Annotated[Literal[1], Field(alias="schema")]


class PlanFile(_File):
    """Which neurons of each layer stay."""

    method: str
    network: str | None
    settings: _Settings
    costs: dict[str, dict[str, Amount]]
    versions: Texts
    protect: list[str]
    switches: dict[str, list[Any]] = Field(default_factory=dict)
    inputs: _Inputs
    layers: Annotated[list[_Layer], Field(min_length=1), AfterValidator(_unique)]
    shapes: Annotated[list[NamedShape], AfterValidator(_unique)]


class ScoresFile(_File):
    """The metadata of scores, beside their tensors."""

    batches: Count
    fan_in: Annotated[list[NamedSize], AfterValidator(_unique)]
    settings: dict[str, Any]
    fingerprint: Hash


class _Progress(Content):
    epoch: Size
    batch: Count
    loss: float
    seconds: Amount
    best: float | None
    best_epoch: Size | None
    history: list[dict[str, Any]]


class CheckpointFile(_File):
    """The metadata of a checkpoint, beside its tensors."""

    progress: _Progress
    scaler: dict[str, Any]


class RunFile(_File):
    """The configuration of a training run."""

    config: dict[str, Any]
    data: str | None
    plan: Hash | None
    transfer: bool


class DataFile(_File):
    """The cases of a training run."""

    id: Hash | None = None
    fingerprint: Hash
    train: list[str]
    validation: list[str]


class TrainingFile(_File):
    """The record of a training run."""

    id: Hash | None = None
    plan: Hash | None = None
    recipe: str | None
    metrics: dict[str, Any]
    goal: str
    epochs: Size
    seconds: Amount
    seed: int
    method: str | None = None
    processes: Size = 1
    data: Hash = "0" * 64
    versions: Texts = Field(default_factory=dict)


class _Budgeted(Content):
    resource: str
    full: str | None
    slim: str
    budget: str | None
    shares: Annotated[list[float | None], Field(min_length=2, max_length=2)]


class _Fit(Content):
    step: dict[str, Any]
    rows: list[_Budgeted]
    verdict: str
    notes: list[str]


class PruningFile(_File):
    """The record of a pruning."""

    network: str | None
    method: str
    settings: _Settings
    inputs: _Inputs
    fingerprint: Hash
    plan: Hash | None = None
    command: str | None
    environment: Texts
    files: dict[str, Hash]
    totals: dict[str, dict[str, Amount]]
    rows: list[Row]
    layers: Annotated[list[RecordLayer], Field(min_length=1)]
    blocks: list[NamedSize] = Field(default_factory=list)
    topology: Topology
    explorer: ExplorerIfAny = None
    measured: dict[str, dict[str, Amount | list[Amount]]] = Field(default_factory=dict)
    timelines: dict[str, Timeline] = Field(default_factory=dict)
    fit: _Fit | None = None

    @model_validator(mode="after")
    def _go_together(self) -> PruningFile:
        layers = len(self.layers)
        check_length(self.topology.space, layers, "topology.space")
        for name, pairs in (("feeds", self.topology.feeds), ("adds", self.topology.adds)):
            check_numbers([i for pair in pairs for i in pair], layers, f"topology.{name}")
        for layer in self.layers:
            check_numbers([layer.row, *layer.rows], len(self.rows), f"layers.{layer.name}.rows")
        return self


class CellFile(_File):
    """A cell of an experiment, and what came of it."""

    cell: dict[str, Any]
    result: dict[str, Any]
    seconds: Amount
    versions: Texts
    files: dict[str, Hash] = Field(default_factory=dict)
    code: str | None = None


class TimingFile(_File):
    """Measured seconds."""

    what: dict[str, Any]
    seconds: dict[str, Amount]


class MemoryCorrectionFile(_File):
    """What predicted memory is multiplied with on a device."""

    device: str
    date: str
    factors: dict[str, Amount]


FILES: dict[str, tuple[str, type[_File]]] = {
    "plan": ("plan", PlanFile),
    "scores": ("scores", ScoresFile),
    "checkpoint": ("checkpoint", CheckpointFile),
    "run": ("configuration", RunFile),
    "data": ("data", DataFile),
    "record": ("record", TrainingFile),
    "pruning": ("pruning record", PruningFile),
    "cell": ("record", CellFile),
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


def run_id(directory: str | Path) -> str | None:
    """Return the id that a run's files carry: the hash of its configuration, where there is one."""
    path = Path(directory) / "config.json"
    return json_sha256(read_file(path, "run")) if path.exists() else None


def read_run_file(directory: str | Path, name: str, kind: str) -> dict[str, Any]:
    """Read a sealed JSON file in the directory of a training run; refuse that of another run."""
    content = read_file(Path(directory) / name, kind)
    check_same_run(content.get("id"), run_id(directory), Path(directory) / name)
    return content


def check_same_run(stored: str | None, own: str | None, path: Path) -> None:
    """Refuse a file of another run; what carries no id is of an earlier version."""
    if None not in (stored, own) and stored != own:
        raise IntegrityError(
            f"'{path}' belongs to another run than the config.json beside it; restore the file"
        )


def seal_epochs(lines: Iterable[Mapping[str, Any]], run: str | None, before: str = "") -> list[str]:
    """Return the lines of a run's `metrics.jsonl`, each sealed together with the one before it."""
    sealed = []
    for line in lines:
        content = {**line, "run": run}
        seal = sha256(before + canonical_json(content))
        before = json.dumps({**content, "seal": seal}, allow_nan=False)
        sealed.append(before)
    return sealed


def read_epochs(directory: str | Path) -> list[dict[str, Any]]:
    """Read the epochs of a run out of its `metrics.jsonl`; none if there is no such file.

    Raises:
        IntegrityError: A line was changed, left out or taken from another run.
    """
    path = Path(directory) / "metrics.jsonl"
    if not path.exists():
        return []
    own, before, epochs = run_id(directory), "", []
    try:
        for text in path.read_bytes().decode().splitlines():
            line = json.loads(text)
            epochs.append({key: line[key] for key in line if key not in ("run", "seal")})
            if line.keys() <= _UNSEALED and not before:
                continue  # of an earlier version
            check_same_run(line["run"], own, path)
            if seal_epochs(epochs[-1:], line["run"], before) != [text]:
                raise ValueError(f"the seal of line {len(epochs)} differs")
            before = text
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"'{path}' was changed after it was written ({error}); restore it, or continue the "
            "run: that makes it again from the checkpoint"
        ) from error
    return epochs


_UNSEALED = {"epoch", "loss", "lr", "seconds", "samples_per_second", "metrics"}


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

    Raises:
        IntegrityError: It names the first field that is not valid.
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
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "content"
        message = first["msg"].removeprefix("Value error, ")
        raise IntegrityError(
            f"{what} {source} is not valid: field '{field}': {message}; restore it or make it again"
        ) from error
