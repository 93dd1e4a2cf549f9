"""Lists runs and their results. Reads JSON files only, so torch is not imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ranp.errors import RanpError, UsageError
from ranp.schemas import read_file, read_training


def list_runs(directory: Path) -> list[dict[str, Any]]:
    """List the runs below a directory, by name, with their results so far."""
    if not directory.is_dir():
        raise UsageError(f"'{directory}' does not exist; `ranp train` makes runs in runs/")
    return [_summary(path.parent) for path in sorted(directory.glob("*/config.json"))]


def _summary(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "name": run.name,
        **dict.fromkeys(("recipe", "method", "epochs", "goal", "mean", "std", "gflops", "seconds")),
        "done": 0,
    }
    try:
        config = read_file(run / "config.json", "run")["config"]
        summary |= {key: config[key] for key in ("recipe", "epochs")}
        if (run / "plan.json").exists():
            summary["method"] = str(read_file(run / "plan.json", "plan")["method"])
        record, epochs = read_training(run)
    except RanpError as error:
        return {**summary, "state": f"damaged: {error}"}
    summary["done"] = len(epochs)
    if record is None:
        return {**summary, "state": "not finished"}
    costs = record["slim"] or record["full"] or {}
    return {
        **summary,
        "state": "finished",
        "goal": record["goal"],
        "mean": record["metrics"][record["goal"]]["mean"],
        "std": record["metrics"][record["goal"]]["std"],
        "gflops": costs.get("gflops"),
        "seconds": record["seconds"],
    }
