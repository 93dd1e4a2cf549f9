"""A training run from configuration to record, in one directory.

- `config.json`: the resolved configuration, sealed
- `data.json`: which cases it is trained and validated on, sealed
- `data/`: the generated data set, where none was given
- `plan.json`: what was kept, where the network was pruned; `pruning.json`: how it was chosen
- `last.safetensors`: the last checkpoint
- `best.safetensors`: the weights of the best epoch
- `metrics.jsonl`: a line per epoch; `log.txt`: the same as text
- `record.json`: the result, sealed; it exists when the run is complete
- `report.html`: all of it, to look at
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ranp.datasets.cases import Cases
from ranp.datasets.loader import Loader, Shard
from ranp.errors import RanpError, UsageError
from ranp.files import write_sealed_json
from ranp.report.page import write_report
from ranp.schemas import averaged, read_run_file, run_id
from ranp.slimming import mark
from ranp.speed import optimization_of
from ranp.training.config import Config
from ranp.training.distributed import all_reduce_sum, launched_as
from ranp.training.job import SCHEMA, Job, claim, owned
from ranp.training.listeners import Listener, RunLog
from ranp.training.loop import Trainer
from ranp.training.preparation import Network, Splits, prepare
from ranp.trials.store import versions

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def make_fabric(config: Config, devices: int = 1, nodes: int = 1) -> Fabric:
    """Return a launched Fabric: devices, precision and processes."""
    from lightning_fabric import Fabric

    many = devices * nodes > 1
    # Fabric logs every process that it starts, which is noise here.
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
    """Train a network up to its record; a run that is complete is not run again.

    Args:
        job: The job.
        resume: Whether to resume the run that the directory holds, if any.
        devices: Number of devices, or processes on a CPU, of each node.
        nodes: Number of machines.
        listener: Listener to the run, on the first process.

    Returns:
        The record: metrics with mean and standard deviation, epochs, seconds, costs.
    """
    from lightning_fabric.utilities.rank_zero import rank_zero_only

    with ExitStack() as stack:
        stack.enter_context(launched_as(devices * nodes))
        if rank_zero_only.rank == 0:  # other processes come to life later, when the run exists
            stack.enter_context(owned(job))
            finished = claim(job, resume=resume)
            if finished is not None:
                return finished
        return _train(job, devices, nodes, listener)


def _train(job: Job, devices: int, nodes: int, listener: Listener | None) -> dict[str, Any]:
    """Train in a directory that is ours; the first process writes."""
    processes = devices * nodes
    if job.config.batch % processes:
        raise UsageError(
            f"a batch of {job.config.batch} cannot be divided over {processes} processes; "
            f"set batch to a multiple of {processes}"
        )
    fabric = make_fabric(job.config, devices, nodes)
    network, splits = _prepare_first(fabric, job)
    config = job.config
    mark(network.model, run=run_id(job.directory))
    listeners: list[Listener] = []
    if fabric.is_global_zero:
        listeners = [RunLog(job.directory, config.epochs), *([listener] if listener else [])]
    trainer = make_trainer(fabric, network.model, job, splits, job.directory, listeners)
    progress = trainer.fit()
    task, device = trainer.task, fabric.device
    optimized = optimization_of(trainer.model) if config.optimize else None
    record = {
        "schema": SCHEMA,
        "kind": "record",
        "id": run_id(job.directory),
        "plan": network.plan.sha256 if network.plan else None,
        "run": str(job.directory),
        "recipe": config.recipe,
        "method": network.plan.method if network.plan else None,
        "metrics": averaged(progress.history),
        "best": {"epoch": progress.best_epoch, task.goal: progress.best},
        "goal": task.goal,
        "epochs": config.epochs,
        "seconds": progress.seconds,
        "full": network.full.totals() if network.full else None,
        "slim": network.slim.totals() if network.slim else None,
        "seed": config.seed,
        "processes": fabric.world_size,
        "optimization": optimized and {"kept": optimized.kept, "speedup": optimized.speedup},
        "data": read_run_file(job.directory, "data.json", "data")["fingerprint"],
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "versions": versions(),
    }
    if fabric.is_global_zero:
        write_sealed_json(job.directory / "record.json", record)
        write_report(job.directory)
    return record


def make_trainer(
    fabric: Fabric,
    model: nn.Module,
    job: Job,
    splits: Splits,
    directory: Path | None = None,
    listeners: Sequence[Listener] = (),
) -> Trainer:
    """Return the `Trainer` of a network on a job's cases for training and for validation."""
    config = job.config
    train, validation = splits
    shard = Shard(fabric.global_rank, fabric.world_size)
    task = config.data.dataset.make_task(config.data.size, train.reader.metadata)
    batch, workers = config.batch // fabric.world_size, config.data.workers
    batches = Loader(train, batch, training=True, workers=workers, shard=shard)
    checks = validation_loader(validation, config, shard)
    return Trainer(fabric, model, task, config, batches, checks, directory, listeners)


def _prepare_first(fabric: Fabric, job: Job) -> tuple[Network, Splits]:
    """Prepare the run on the first process, then on the others; if it cannot, all end."""
    prepared: tuple[Network, Splits] | None = None
    failure: RanpError | None = None
    if fabric.is_global_zero:
        try:
            prepared = prepare(job)
        except RanpError as error:
            failure = error
    (failed,) = all_reduce_sum(fabric, [float(failure is not None)])
    if failure is not None:
        raise failure
    if failed:
        raise RanpError("the first process could not prepare the run")
    return prepared or prepare(job)


def validation_loader(cases: Cases, config: Config, shard: Shard = Shard()) -> Loader:  # noqa: B008
    """Return validation batches: of one where whole volumes may differ in shape."""
    whole = config.data.dataset.whole_volumes
    batch = 1 if whole else max(config.batch // shard.world, 1)
    return Loader(cases, batch, training=False, workers=config.data.workers, shard=shard)
