"""Prepare a run: data, and the network to train, pruned where that is asked for."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ranp import pipeline
from ranp.datasets import open_cases, synthesise
from ranp.datasets.cases import Cases
from ranp.datasets.loader import Loader
from ranp.errors import IntegrityError, TraceError
from ranp.files import json_sha256, write_sealed_json
from ranp.graph import build_graph
from ranp.models import glorot_normal_
from ranp.pruning import Choice
from ranp.recording import make_record, write_record
from ranp.resources import Costs, count
from ranp.schemas import read_run_file, run_id
from ranp.slimming import Plan
from ranp.training.config import Config
from ranp.training.job import SCHEMA, Job
from ranp.training.networks import build_network


@dataclass(frozen=True)
class Network:
    """The network to train, full or slimmed by a plan, with fresh Glorot-normal weights.

    Costs are by the paper's rules: those of the full network, unless it cannot be traced, and of
    the slim one.
    """

    model: nn.Module
    plan: Plan | None
    full: Costs | None
    slim: Costs | None


Splits = tuple[Cases, Cases]
"""Cases for training and for validation."""


def prepare(job: Job) -> tuple[Network, Splits]:
    """Build the network and open the data; what the run directory holds already is reused.

    Data is generated where none is given. A pruned network leaves its plan and record.
    """
    ensure_data(job)
    splits = train, _ = open_splits(job)
    _record_cases(job, splits)
    full = build_network(job.config.network, job.factory)
    shape = (1, *train[0]["x"].shape)
    stored = job.directory / "plan.json"
    given = stored if stored.exists() else job.plan
    if given is not None:
        network = _planned(job, full, Plan.load(given), shape)
        if given is job.plan and network.plan is not None:
            network.plan.save(stored)  # after it was applied: a plan of another network is refused
    elif job.config.pruning.method is not None:
        network = _pruned(job, full, train, shape)
    else:
        costs = None
        with contextlib.suppress(TraceError):
            costs = count(full, build_graph(full, shape))
        network = Network(fresh_network(full, None, seed=job.config.seed), None, costs, None)
    return network, splits


def _planned(job: Job, full: nn.Module, plan: Plan, shape: tuple[int, ...]) -> Network:
    graph = build_graph(full, shape, protect=plan.protect)
    model = plan.apply(full, seed=job.config.seed, transfer=job.transfer, graph=graph)
    alive = plan.alive(graph, transfer=job.transfer)
    return Network(model, plan, count(full, graph), count(full, graph, alive))


def _pruned(job: Job, full: nn.Module, train: Cases, shape: tuple[int, ...]) -> Network:
    """Prune a network, scoring it with the training data, one sample at a time."""
    config, pruning = job.config, job.config.pruning
    is_resized = config.scoring_size != config.data.size
    cases = Cases(train.reader.resized(config.scoring_size), train.seed) if is_resized else train
    task = config.data.dataset.make_task(config.data.size)
    result = pipeline.prune(
        pipeline.trace(full, Loader(cases, 1, training=True, workers=config.data.workers)),
        make_choice(config),
        pruning.sparsity,
        pipeline.Scoring(task.scoring_forward, batches=pruning.batches, seed=config.seed),
    )
    data = f"{config.data.kind}, {'given' if job.data else 'generated'} training cases"
    write_record(job.directory, make_record(result.chooser, result.plan, data=data))
    result.plan.save(job.directory / "plan.json")  # last: with a plan, pruning is complete
    if is_resized:  # costs are those of training
        return _planned(job, full, result.plan, shape)
    return Network(result.model, result.plan, result.before, result.after)


def make_choice(config: Config) -> Choice:
    """Return the choice of a configuration that names a pruning method."""
    pruning = config.pruning
    assert pruning.method is not None
    settings = pruning.model_dump(include={"lam", "coupling", "floor"})
    return Choice.make(pruning.method, seed=config.seed, **settings)


def fresh_network(
    full: nn.Module, plan: Plan | None, *, transfer: bool = False, seed: int
) -> nn.Module:
    """Return the network to train, full or slimmed by a plan, with fresh Glorot-normal weights."""
    if plan is not None:
        return plan.apply(full, init="fresh", seed=seed, transfer=transfer)
    glorot_normal_(full, gamma="ones", generator=torch.Generator().manual_seed(seed))
    return full


def ensure_data(job: Job) -> None:
    """Generate the data of a job, where none is given and none is there yet."""
    if job.data is not None or (job.directory / "data").is_dir():
        return
    data = job.config.data
    partial = job.directory / "data.partial"
    shutil.rmtree(partial, ignore_errors=True)
    synthesise(
        data.kind, partial, cases=data.cases, size=data.generated_size, seed=0, classes=data.classes
    )
    partial.rename(job.directory / "data")


def _record_cases(job: Job, splits: Splits) -> None:
    """Store which cases there are, or make sure that they are the same as before."""
    ids = {n: list(s.ids) for n, s in zip(("train", "validation"), splits, strict=True)}
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "data",
        "id": run_id(job.directory),
        "fingerprint": json_sha256([job.config.data.kind, ids]),
        **ids,
    }
    for cases in splits:  # a class may occur in one of them alone
        for key, value in cases.reader.metadata.items():
            content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    path = job.directory / "data.json"
    if path.exists():
        before = read_run_file(job.directory, path.name, "data")
        if before["fingerprint"] != content["fingerprint"]:
            raise IntegrityError(
                f"run '{job.directory}' was begun with other cases ({len(before['train'])} for "
                f"training, now {len(ids['train'])}); give the same data, or another --out"
            )
        return
    write_sealed_json(path, content)


def check_cases(job: Job, split: str, cases: Cases) -> None:
    """Refuse cases of a split of a job's own data that are not those it was started with."""
    before = read_run_file(job.directory, "data.json", "data").get(split)
    if before is not None and before != list(cases.ids):
        raise IntegrityError(
            f"run '{job.directory}' was begun with other cases ({len(before)} for {split}, now "
            f"{len(cases)}); restore its data, or name another data set with --data"
        )


def open_splits(job: Job) -> Splits:
    """Open the cases for training and for validation."""
    data = job.config.data
    train = open_split(job, "train", data.size)
    return train, open_split(job, "validation", data.size_in_validation)


def open_split(job: Job, split: str, size: int, data: Path | None = None) -> Cases:
    """Open the cases of one split of a job's data, or of another directory of the same kind."""
    return open_cases(
        job.config.data.kind,
        data or job.data or job.directory / "data",
        split,
        size=size,
        fold=job.config.data.fold,
        seed=job.config.seed,
        options=job.config.data.options,
    )


def stored_plan(directory: Path) -> Plan | None:
    """Return the plan of a run; None if it trains the full network."""
    path = directory / "plan.json"
    return Plan.load(path) if path.exists() else None
