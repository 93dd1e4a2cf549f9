"""Communication between the processes of a run."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from ranp.errors import UsageError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


# Environment variables that launchers set for the processes that they start.
_LAUNCHED = (
    "WORLD_SIZE",
    "SLURM_NTASKS",
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "SLURM_PROCID",
    "SLURM_LOCALID",
)


@contextmanager
def launched_as(processes: int) -> Iterator[None]:
    """Make sure that a launcher started as many processes as the run is to have.

    A run of one process ignores what an allocation or a shell left in the environment, and says
    so: a stray `RANK=1` would else make it wait for a first process that does not exist.

    Raises:
        UsageError: torchrun started another number.
    """
    from lightning_fabric.utilities.rank_zero import rank_zero_only

    started = int(os.environ.get("WORLD_SIZE", 1)) if "TORCHELASTIC_RUN_ID" in os.environ else None
    if started is not None and started != processes:
        raise UsageError(
            f"torchrun started {started} processes and the run has {processes}; give --devices "
            "and --nodes as --nproc-per-node and --nnodes"
        )
    stray = {name: os.environ[name] for name in _LAUNCHED if name in os.environ}
    if processes > 1 or started is not None or not stray:
        yield
        return
    shown = ", ".join(f"{name}={value}" for name, value in stray.items())
    logging.getLogger("ranp").warning("one process: %s in the environment is ignored", shown)
    rank, rank_zero_only.rank = rank_zero_only.rank, 0
    for name in stray:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(stray)
        rank_zero_only.rank = rank


def gather_interleaved(fabric: Fabric, own: list[T]) -> list[T]:
    """Gather items in the data set's order: process r of n has items r, r + n, ...

    They travel as JSON, which keeps every float as it is.
    """
    if fabric.world_size == 1:
        return own
    text = json.dumps(own).encode()
    lengths = fabric.all_gather(torch.tensor(len(text), device=fabric.device)).tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=fabric.device)
    padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    rows = fabric.all_gather(padded).cpu().numpy()
    parts = [json.loads(row[:n].tobytes()) for row, n in zip(rows, lengths, strict=True)]
    total = sum(map(len, parts))
    return [parts[i % fabric.world_size][i // fabric.world_size] for i in range(total)]


def all_reduce_sum(fabric: Fabric, values: list[float]) -> list[float]:
    """Sum numbers over all processes."""
    if fabric.world_size == 1:
        return values
    total = torch.tensor(values, dtype=torch.float64, device=fabric.device)
    torch.distributed.all_reduce(total)
    result: list[float] = total.tolist()
    return result


def broadcast_buffers(fabric: Fabric, model: nn.Module) -> None:
    """Broadcast the buffers of the first process, such as batch norm's statistics."""
    if fabric.world_size > 1:
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, src=0)
