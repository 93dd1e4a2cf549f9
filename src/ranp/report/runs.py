"""What runs have stored: records of prunings and trainings, and plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranp.errors import IntegrityError, UsageError
from ranp.files import json_sha256, sha256
from ranp.schemas import read_file, read_training

PRUNING = "pruning.json"
PLAN = "plan.json"
TRAINING = "record.json"
SCORES = "scores.safetensors"


@dataclass(frozen=True)
class StoredRun:
    """Content of a run's directory.

    There is no pruning where the full network was trained, and part of one where there is a plan
    alone; `epochs` are the lines of metrics.
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
        chosen = _from_plan(read_file(path, "plan"))
        if pruning is None or not _same_choice(pruning, chosen):
            return StoredRun(path.name, chosen)
        return StoredRun(path.name, pruning)
    plan = read_file(directory / PLAN, "plan") if (directory / PLAN).exists() else None
    training, epochs = read_training(directory)
    _check_mixture(directory, plan, pruning, training)
    if pruning is None and plan is not None:
        pruning = _from_plan(plan)
    if pruning is None and training is None:
        raise UsageError(
            f"'{directory}' holds no {PRUNING}, {PLAN} or {TRAINING}; "
            "make one with `ranp prune ... --out DIR` or `ranp train`"
        )
    return StoredRun(directory.resolve().name, pruning, training, epochs)


def _check_mixture(
    directory: Path,
    plan: dict[str, Any] | None,
    pruning: dict[str, Any] | None,
    training: dict[str, Any] | None,
) -> None:
    """Refuse a directory whose files are of different runs."""
    made_by = None if plan is None else json_sha256(plan)
    for name, record in ((PRUNING, pruning), (TRAINING, training)):
        stored = (record or {}).get("plan")
        if stored is not None and made_by not in (None, stored):
            raise IntegrityError(f"'{directory}': {name} and {PLAN} are of different runs")
    scores = directory / SCORES
    stored = (pruning or {}).get("files", {}).get(SCORES)
    if stored is not None and scores.exists() and sha256(scores.read_bytes()) != stored:
        raise IntegrityError(f"'{directory}': {PRUNING} and {SCORES} are of different runs")


def _pruning(directory: Path) -> dict[str, Any] | None:
    path = directory / PRUNING
    if not path.exists():
        return None
    record = read_file(path, "pruning")
    if "sparsities" not in (record.get("explorer") or {}):  # of a version before
        record.pop("explorer", None)
    return record


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
