"""Reads the files of a training run, which belong together: each refuses those of another run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ranp.errors import IntegrityError
from ranp.files import canonical_json, json_sha256, sha256
from ranp.schemas.reading import first_problem, read_file
from ranp.schemas.run import Epoch, TrainingFile, check_epochs, check_record


def run_id(directory: str | Path) -> str | None:
    """Return the id that a run's files carry: the hash of its configuration, where there is one."""
    path = Path(directory) / "config.json"
    return json_sha256(read_file(path, "run")) if path.exists() else None


def read_run_file(directory: str | Path, name: str, kind: str) -> dict[str, Any]:
    """Read a sealed JSON file in the directory of a training run; refuse that of another run."""
    path, beside = Path(directory) / name, Path(directory) / "config.json"
    content = read_file(path, kind)
    if beside.exists():
        run = read_file(beside, "run")
        check_same_run(content.get("id"), json_sha256(run), path)
        _check_configured(content, run["config"], path)
    return content


def _check_configured(content: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> None:
    """Refuse cases, or a record, that the configuration beside them says otherwise."""
    expected = {name: config[name] for name in ("recipe", "epochs", "seed") if name in config}
    if content["kind"] == "data":
        ids = {name: content[name] for name in ("train", "validation")}
        expected = {"fingerprint": json_sha256([config.get("data", {}).get("kind"), ids])}
    for name, value in expected.items():
        if content[name] != value:
            raise IntegrityError(
                f"'{path}' is not valid: field '{name}' must be {value!r} by the config.json "
                f"beside it, got {content[name]!r}; restore the file"
            )


def read_training(directory: str | Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Read the record of a run, None before it is complete, and its epochs.

    Raises:
        IntegrityError: One was changed, is of another run, or does not follow from the other.
    """
    record, epochs = None, read_epochs(directory)
    path = Path(directory) / "record.json"
    if path.exists():
        record = read_run_file(directory, path.name, "record")
    if record is not None and epochs:
        try:
            check_record(
                TrainingFile.model_validate(record), [Epoch.model_validate(e) for e in epochs]
            )
        except ValueError as error:
            raise IntegrityError(f"'{path}' is not valid: {error}; restore the file") from error
    return record, epochs


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
    own, before = run_id(directory), ""
    epochs: list[dict[str, Any]] = []
    read: list[Epoch] = []
    try:
        for text in path.read_bytes().decode().splitlines():
            line = json.loads(text)
            if not isinstance(line, dict):
                raise ValueError(f"line {len(epochs) + 1} must be an object")
            epochs.append({key: line[key] for key in line if key not in ("run", "seal")})
            read.append(Epoch.model_validate(epochs[-1]))
            if line.keys() <= _UNSEALED and not before:
                continue  # of an earlier version
            check_same_run(line["run"] or "", own, path)
            if seal_epochs(epochs[-1:], line["run"], before) != [text]:
                raise ValueError(f"the seal of line {len(epochs)} differs")
            before = text
        check_epochs(read)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(
            f"'{path}' was changed after it was written ({first_problem(error)}); restore it, or "
            "continue the run: that makes it again from the checkpoint"
        ) from error
    return epochs


_UNSEALED = {"epoch", "loss", "lr", "seconds", "samples_per_second", "metrics"}
