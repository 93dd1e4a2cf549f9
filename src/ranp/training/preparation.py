"""What comes before the first step: data, and the plan of a pruned network."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ranp import api
from ranp.datasets import find_dataset, open_cases, synthesise
from ranp.datasets.cases import Cases
from ranp.datasets.loader import Loader
from ranp.errors import IntegrityError
from ranp.files import canonical_json, sha256, write_sealed_json
from ranp.recording import make_record, write_record
from ranp.schemas import read_file
from ranp.slimming import Plan
from ranp.training.job import SCHEMA, Job
from ranp.training.networks import build_network, fresh_network


def prepare(job: Job) -> None:
    """Generates the data, notes which cases there are, and prunes, where not done already."""
    if job.data is None and not (job.directory / "data").is_dir():
        _generate(job)
    _note_data(job)
    path = job.directory / "plan.json"
    if path.exists():
        return
    if job.plan is not None:
        plan = Plan.load(job.plan)
        # Applied once before anything is stored, so that a plan of another network is refused.
        full = build_network(job.config.network, job.factory)
        fresh_network(full, plan, transfer=job.transfer, seed=job.config.seed)
        plan.save(path)
    elif job.config.pruning.method is not None:
        result = prune(job)
        scored = f"{job.config.data.kind}, {'given' if job.data else 'generated'} training cases"
        write_record(job.directory, make_record(result.chooser, result.plan, data=scored))
        result.plan.save(path)  # last: where there is a plan, pruning is complete


def _generate(job: Job) -> None:
    data = job.config.data
    partial = job.directory / "data.partial"
    shutil.rmtree(partial, ignore_errors=True)
    synthesise(
        data.kind,
        partial,
        cases=data.cases,
        size=data.generated_size,
        seed=0,
        classes=data.classes,
    )
    partial.rename(job.directory / "data")


def _note_data(job: Job) -> None:
    splits = dict(zip(("train", "validation"), open_splits(job), strict=True))
    ids = {name: list(cases.ids) for name, cases in splits.items()}
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "data",
        "fingerprint": sha256(canonical_json([job.config.data.kind, ids])),
        **ids,
        **_merged_metadata(splits.values()),
    }
    path = job.directory / "data.json"
    if path.exists():
        before = read_file(path, "data")
        if before["fingerprint"] != content["fingerprint"]:
            raise IntegrityError(
                f"run '{job.directory}' was begun with other cases ({len(before['train'])} for "
                f"training, now {len(ids['train'])}); give the same data, or another --out"
            )
        return
    write_sealed_json(path, content)


def _merged_metadata(splits: Iterable[Cases]) -> dict[str, Any]:
    """Metadata of all splits: a class may occur in one of them alone."""
    merged: dict[str, Any] = {}
    for cases in splits:
        for key, value in cases.reader.metadata.items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return merged


def open_splits(job: Job) -> tuple[Cases, Cases]:
    """The cases for training and for validation."""
    size = job.config.data.size
    validation_size = job.config.data.validation_size or size
    return open_split(job, "train", size), open_split(job, "validation", validation_size)


def open_split(job: Job, split: str, size: int, data: Path | None = None) -> Cases:
    """The cases of one split.

    Args:
        job: Says which data set and fold.
        split: "train", "validation" or, for ShapeNet, "test".
        size: Edge of grids, crops or frames.
        data: Another data set of the same kind.
    """
    return open_cases(
        job.config.data.kind,
        data or job.data or job.directory / "data",
        split,
        size=size,
        fold=job.config.data.fold,
        seed=job.config.seed,
    )


def prune(job: Job) -> api.Result:
    """Prunes the network of a job, scoring it with its training data, one sample at a time."""
    config, pruning = job.config, job.config.pruning
    assert pruning.method is not None
    cases = open_split(job, "train", pruning.size or config.data.size)
    task = find_dataset(config.data.kind).make_task(config.data.size)
    return api.prune(
        build_network(config.network, job.factory),
        Loader(cases, 1, training=True, workers=config.data.workers),
        forward=lambda model, batch: task.loss(model(batch["x"]), batch),
        method=pruning.method,
        sparsity=pruning.sparsity,
        lam=pruning.lam,
        coupling=pruning.coupling,
        floor=pruning.floor,
        batches=pruning.batches,
        seed=config.seed,
    )


def stored_plan(directory: Path) -> Plan | None:
    """The plan of a run; none if it trains the full network."""
    path = directory / "plan.json"
    return Plan.load(path) if path.exists() else None
