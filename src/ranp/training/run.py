"""A training run from configuration to record, in one directory.

- `config.json`: the resolved configuration, sealed
- `data.json`: which cases it is trained and validated on, sealed
- `data/`: the generated data set, where none was given
- `plan.json`: what was kept, where the network was pruned; `pruning.json`: how it came about
- `last.safetensors`: the last checkpoint
- `best.safetensors`: the weights of the best epoch
- `metrics.jsonl`: a line per epoch; `log.txt`: the same for people
- `record.json`: the result, sealed; it exists when the run is complete
- `report.html`: all of it, to look at
"""

from __future__ import annotations

import logging
import platform
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ranp import api
from ranp._version import __version__
from ranp.api import Result
from ranp.data.cases import Cases
from ranp.data.loader import Loader, Shard
from ranp.data.registry import open_cases, synthesise
from ranp.errors import IntegrityError, RanpError, UsageError
from ranp.files import (
    canonical_json,
    ensure_directory,
    read_sealed_json,
    sha256,
    write_sealed_json,
)
from ranp.recording import make_record, write_record
from ranp.report.page import write_report
from ranp.slimming import Plan
from ranp.training.config import Config, first_difference, parse_config
from ranp.training.distributed import summed
from ranp.training.listeners import Listener, Listeners, RunLog
from ranp.training.loop import AVERAGED_EPOCHS, Trainer
from ranp.training.networks import Factory, build_network, costs, fresh_network
from ranp.training.tasks import make_task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_SCHEMA = 1
_PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


@dataclass(frozen=True)
class Job:
    """What to train, where, and from what.

    Attributes:
        config: The resolved configuration.
        directory: The run directory.
        data: The data set's directory; without one a synthetic set is generated.
        plan: A plan to slim the network by, in the place of pruning it here.
        transfer: Whether the plan may be of a network with other inputs and classes.
        factory: The user's own network.
    """

    config: Config
    directory: Path
    data: Path | None = None
    plan: Path | None = None
    transfer: bool = False
    factory: Factory | None = None


def make_fabric(config: Config, devices: int = 1, nodes: int = 1) -> Fabric:
    """The engine for devices, precision and processes; launched, so processes run from here on."""
    from lightning_fabric import Fabric

    many = devices * nodes > 1
    # Fabric announces its processes; who asked for them knows.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    fabric = Fabric(
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if many else "auto",
        precision=_PRECISION[config.precision],
    )
    fabric.launch()
    return fabric


def train(
    job: Job,
    *,
    resume: bool = False,
    devices: int = 1,
    nodes: int = 1,
    listener: Listener | None = None,
) -> dict[str, Any]:
    """Trains a network, from nothing to a record; a run that is complete is not run again.

    Args:
        job: What to train.
        resume: Whether to go on where the run directory holds a run.
        devices: Devices, or processes on a CPU, of each node.
        nodes: Machines.
        listener: Is told how it goes, on the first process.

    Returns:
        The record: metrics with mean and standard deviation, epochs, seconds, costs.
    """
    from lightning_fabric.utilities.rank_zero import rank_zero_only

    if rank_zero_only.rank == 0:  # other processes come to life later, when the run exists
        finished = claim(job, resume=resume)
        if finished is not None:
            return finished
    _check_batch(job.config, devices * nodes)
    fabric = make_fabric(job.config, devices, nodes)
    _on_first_process(fabric, job)

    shard = Shard(fabric.global_rank, fabric.world_size)
    train_cases, validation_cases = open_splits(job)
    task = make_task(job.config.task, window=job.config.data.size)
    full = build_network(job.config.network, job.factory)
    plan = stored_plan(job.directory)
    shape = (1, *train_cases[0]["x"].shape)
    full_costs = costs(full, shape)
    model = fresh_network(full, plan, transfer=job.transfer, seed=job.config.seed)
    listeners: list[Listener] = [] if listener is None else [listener]
    if fabric.is_global_zero:
        listeners.insert(0, RunLog(job.directory, job.config.epochs))
    trainer = Trainer(
        fabric,
        model,
        task,
        job.config,
        Loader(
            train_cases,
            job.config.batch // fabric.world_size,
            training=True,
            workers=job.config.data.workers,
            shard=shard,
        ),
        validation_loader(validation_cases, job.config, shard),
        job.directory,
        Listeners(*listeners) if fabric.is_global_zero else None,
    )
    progress = trainer.fit()
    record = {
        "schema": _SCHEMA,
        "kind": "record",
        "run": str(job.directory),
        "recipe": job.config.recipe,
        "method": plan.method if plan else None,
        "metrics": averaged(progress.history),
        "best": {"epoch": progress.best_epoch, task.goal: progress.best},
        "goal": task.goal,
        "epochs": job.config.epochs,
        "seconds": progress.seconds,
        "full": full_costs,
        "slim": costs(model, shape) if plan else None,
        "seed": job.config.seed,
        "processes": fabric.world_size,
        "data": read_sealed_json(job.directory / "data.json", "data")["fingerprint"],
        "device": _device_name(fabric),
        "versions": {
            "ranp": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
    }
    if fabric.is_global_zero:
        write_sealed_json(job.directory / "record.json", record)
        write_report(job.directory)
    return record


def claim(job: Job, *, resume: bool) -> dict[str, Any] | None:
    """Makes the run directory, or makes sure that a run to go on with is the same one.

    Returns:
        The record, if the run is complete.
    """
    directory = job.directory
    stored = directory / "config.json"
    if stored.exists():
        if not resume:
            raise UsageError(
                f"run directory '{directory}' holds a run; --resume auto goes on with it, "
                "or choose another --out"
            )
        _check_same(job, read_sealed_json(stored, "configuration"))
    elif directory.is_dir() and any(directory.iterdir()):
        raise UsageError(f"run directory '{directory}' is not empty, and no run; choose another")
    ensure_directory(directory)
    if not stored.exists():
        write_sealed_json(
            stored,
            {
                "schema": _SCHEMA,
                "kind": "run",
                "config": job.config.model_dump(mode="json"),
                "data": str(job.data.resolve()) if job.data else None,
                "plan": _plan_id(job.plan),
                "transfer": job.transfer,
            },
        )
    record = directory / "record.json"
    return read_sealed_json(record, "record") if record.exists() else None


def _check_same(job: Job, stored: dict[str, Any]) -> None:
    before = parse_config(stored["config"], f"run '{job.directory}'")
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
    return sha256(canonical_json(read_sealed_json(plan, "plan")))


def _check_batch(config: Config, processes: int) -> None:
    if config.batch % processes:
        raise UsageError(
            f"a batch of {config.batch} cannot be divided over {processes} processes; "
            f"set batch to a multiple of {processes}"
        )


def _on_first_process(fabric: Fabric, job: Job) -> None:
    """The first process prepares the run; if it cannot, all processes end."""
    failure: RanpError | None = None
    if fabric.is_global_zero:
        try:
            prepare(job)
        except RanpError as error:
            failure = error
    (failed,) = summed(fabric, [float(failure is not None)])
    if failure is not None:
        raise failure
    if failed:
        raise RanpError("the first process could not prepare the run")


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
        "schema": _SCHEMA,
        "kind": "data",
        "fingerprint": sha256(canonical_json([job.config.data.kind, ids])),
        **ids,
    }
    clips = [clip for cases in splits.values() for clip in getattr(cases.reader, "clips", ())]
    if clips:
        content["classes"] = {str(clip.label): clip.class_name for clip in clips}
    path = job.directory / "data.json"
    if path.exists():
        before = read_sealed_json(path, "data")
        if before["fingerprint"] != content["fingerprint"]:
            raise IntegrityError(
                f"run '{job.directory}' was begun with other cases ({len(before['train'])} for "
                f"training, now {len(ids['train'])}); give the same data, or another --out"
            )
        return
    write_sealed_json(path, content)


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


def validation_loader(cases: Cases, config: Config, shard: Shard = Shard()) -> Loader:  # noqa: B008
    """Validation batches: one by one where volumes differ in size, as BraTS' whole ones may."""
    batch = 1 if config.task == "brats" else max(config.batch // shard.world, 1)
    return Loader(cases, batch, training=False, workers=config.data.workers, shard=shard)


def prune(job: Job) -> Result:
    """Prunes the network of a job, scoring it with its training data, one sample at a time."""
    config, pruning = job.config, job.config.pruning
    assert pruning.method is not None
    cases = open_split(job, "train", pruning.size or config.data.size)
    task = make_task(config.task, window=config.data.size)
    return api.prune(
        build_network(config.network, job.factory),
        Loader(cases, 1, training=True, workers=config.data.workers),
        forward=lambda model, batch: task.loss(model(batch["x"]), batch),
        method=pruning.method,
        sparsity=pruning.sparsity,
        lam=pruning.lam,
        floor=pruning.floor,
        batches=pruning.batches,
        seed=config.seed,
    )


def stored_plan(directory: Path) -> Plan | None:
    """The plan of a run; none if it trains the full network."""
    path = directory / "plan.json"
    return Plan.load(path) if path.exists() else None


def averaged(history: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation (n - 1) of every metric over the last five epochs."""
    lines = [line["metrics"] for line in history[-AVERAGED_EPOCHS:]]
    columns = {name: [line[name] for line in lines] for name in lines[-1]}
    return {
        name: {
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else 0.0,
            "last": values[-1],
        }
        for name, values in columns.items()
    }


def _device_name(fabric: Fabric) -> str:
    if fabric.device.type == "cuda":
        return str(torch.cuda.get_device_name(fabric.device))
    return str(fabric.device.type)


def read_job(directory: Path, factory: Factory | None = None) -> Job:
    """The job of a run directory.

    Args:
        directory: The run directory.
        factory: The user's own network, where the run is of one.
    """
    if not (directory / "config.json").exists():
        raise UsageError(f"'{directory}' holds no run; `ranp runs` lists those there are")
    stored = read_sealed_json(directory / "config.json", "configuration")
    return Job(
        config=parse_config(stored["config"], f"run '{directory}'"),
        directory=directory,
        data=Path(stored["data"]) if stored["data"] else None,
        transfer=stored["transfer"],
        factory=factory,
    )
