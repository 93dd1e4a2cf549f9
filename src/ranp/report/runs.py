"""What runs have stored: records of prunings and trainings, and plans."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranp.errors import IntegrityError, UsageError
from ranp.schemas import read_file

PRUNING = "pruning.json"
PLAN = "plan.json"
TRAINING = "record.json"
EPOCHS = "metrics.jsonl"


@dataclass(frozen=True)
class StoredRun:
    """Content of a run's directory.

    Attributes:
        name: Name of the run.
        pruning: The record of its pruning; from a plan alone only part of it; None if the full
            network was trained.
        training: The record of its training, if it was trained.
        epochs: A line of metrics for every epoch.
    """

    name: str
    pruning: dict[str, Any] | None
    training: dict[str, Any] | None = None
    epochs: list[dict[str, Any]] = field(default_factory=list)


def load_run(path: str | Path) -> StoredRun:
    """Read a run's directory, or a plan.

    Args:
        path: A directory that holds `pruning.json`, `plan.json` or `record.json`, or one of these
            files. A plan beside the record of its own pruning brings the record with it.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"'{path}' does not exist; give a run's directory or a plan")
    directory = path if path.is_dir() else path.parent
    pruning = _pruning(directory)
    if path.is_file() and path.name not in (PRUNING, TRAINING):
        plan = _from_plan(_read(path, "plan"))
        if pruning is None or not _same_choice(pruning, plan):
            return StoredRun(path.name, plan)
        return StoredRun(path.name, pruning)
    if pruning is None and (directory / PLAN).exists():
        pruning = _from_plan(_read(directory / PLAN, "plan"))
    training = None
    if (directory / TRAINING).exists():
        training = _read(directory / TRAINING, "record")
    if pruning is None and training is None:
        raise UsageError(
            f"'{directory}' holds no {PRUNING}, {PLAN} or {TRAINING}; "
            "make one with `ranp prune ... --out DIR` or `ranp train`"
        )
    return StoredRun(directory.resolve().name, pruning, training, _epochs(directory))


def _pruning(directory: Path) -> dict[str, Any] | None:
    path = directory / PRUNING
    if not path.exists():
        return None
    record = _read(path, "pruning")
    if "sparsities" not in record.get("explorer", {}):  # of a version before
        record.pop("explorer", None)
    return record


def _read(path: Path, kind: str) -> dict[str, Any]:
    return read_file(path, kind)


def _epochs(directory: Path) -> list[dict[str, Any]]:
    path = directory / EPOCHS
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except ValueError as error:
        raise IntegrityError(f"'{path}' holds a line that is not JSON ({error})") from error


def _from_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """Return what a plan alone knows of a pruning."""
    same = ("network", "method", "settings", "protect", "inputs")
    return {
        **{name: plan[name] for name in same},
        "command": None,
        "totals": plan["costs"],
        "environment": plan["versions"],
        "layers": [
            {"name": each["name"], "neurons": each["neurons"], "kept": len(each["kept"])}
            for each in plan["layers"]
        ],
    }


def _same_choice(pruning: dict[str, Any], plan: dict[str, Any]) -> bool:
    def essence(record: dict[str, Any]) -> Any:
        kept = [(each["name"], each["neurons"], each["kept"]) for each in record["layers"]]
        return record["method"], record["settings"], record["totals"], kept

    return bool(essence(pruning) == essence(plan))
