"""Training jobs, and the run directories that hold them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ranp.errors import UsageError
from ranp.files import LOCK, ensure_directory, hold_directory, json_sha256, write_sealed_json
from ranp.schemas import read_file, read_training
from ranp.training.config import Config, first_difference, parse_config
from ranp.training.networks import Factory, find_spec

SCHEMA = 1


@dataclass(frozen=True)
class Job:
    """A training job.

    Attributes:
        config: The resolved configuration.
        directory: The run directory.
        data: The data set's directory; without one a synthetic set is generated.
        plan: Plan to slim the network by, instead of pruning it here.
        transfer: Whether the plan may be of a network with other inputs and classes.
        factory: The user's own network.
    """

    config: Config
    directory: Path
    data: Path | None = None
    plan: Path | None = None
    transfer: bool = False
    factory: Factory | None = None


@contextmanager
def owned(job: Job) -> Iterator[None]:
    """Make the run directory and hold it, so that no other process trains there meanwhile."""
    directory = job.directory
    foreign = directory.is_dir() and any(entry.name != LOCK for entry in directory.iterdir())
    if foreign and not (directory / "config.json").exists():
        raise UsageError(f"run directory '{directory}' is not empty, and no run; choose another")
    with hold_directory(ensure_directory(directory)) as owner:
        if owner is not None:
            raise UsageError(
                f"run directory '{directory}' is in use by {owner}; wait for it, or choose another "
                "--out"
            )
        yield


def claim(job: Job, *, resume: bool) -> dict[str, Any] | None:
    """Begin a run in a directory that is `owned`, or make sure that it holds the same run.

    Returns:
        The record, if the run is complete.
    """
    directory = job.directory
    stored = directory / "config.json"
    if stored.exists():
        if not resume:
            raise UsageError(
                f"run directory '{directory}' holds a run; continue it with --resume auto, "
                "or choose another --out"
            )
        _check_same(job, read_file(stored, "run"))
    else:
        find_spec(job.config.network, job.factory)  # a wrong name must leave no run behind
        write_sealed_json(
            stored,
            {
                "schema": SCHEMA,
                "kind": "run",
                "config": job.config.model_dump(mode="json"),
                "data": str(job.data.resolve()) if job.data else None,
                "plan": _plan_id(job.plan),
                "transfer": job.transfer,
            },
        )
    return read_training(directory)[0]


def _check_same(job: Job, stored: dict[str, Any]) -> None:
    before = parse_config(stored["config"], f"run '{job.directory}'", stored=True)
    difference = first_difference(before, job.config)
    if difference is None and stored["plan"] != _plan_id(job.plan):
        difference = "the plan is another one"
    if difference is None and stored["transfer"] != job.transfer:
        difference = f"transfer is {stored['transfer']} there and {job.transfer} here"
    if difference is not None:
        raise UsageError(
            f"run '{job.directory}' has another configuration: {difference}; "
            "give the same settings, or choose another --out"
        )


def _plan_id(plan: Path | None) -> str | None:
    if plan is None:
        return None
    return json_sha256(read_file(plan, "plan"))


def read_job(directory: Path, factory: Factory | None = None) -> Job:
    """Read the job of a run directory; `factory` is the user's own network, where it has one."""
    if not (directory / "config.json").exists():
        raise UsageError(f"'{directory}' holds no run; `ranp runs` lists those there are")
    stored = read_file(directory / "config.json", "run")
    return Job(
        config=parse_config(stored["config"], f"run '{directory}'", stored=True),
        directory=directory,
        data=Path(stored["data"]) if stored["data"] else None,
        transfer=stored["transfer"],
        factory=factory,
    )
