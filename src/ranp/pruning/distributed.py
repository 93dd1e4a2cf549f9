"""Scoring by several processes: each takes its share of the batches, one sum joins them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from itertools import count, islice
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree
from torch.utils.data.distributed import DistributedSampler

from ranp.pruning.batches import batch_size, check_batches, samples
from ranp.pruning.scores import Scores

MOST_UNSIZED_BATCHES = 1000
"""Where a loader without a length is stopped: it may never end."""


def rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def all_reduce_min(values: Sequence[float]) -> list[float]:
    """Return the minimum of each number over all processes."""
    if rank_and_world_size()[1] == 1:
        return list(values)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    found = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return found.tolist()


def own_batches(loader: Iterable[Any], done: int, limit: int | None) -> Iterator[tuple[int, Any]]:
    """Yield the batches of this process, with their numbers from 0 over all processes.

    From a loader that gives all processes the same batches, every n-th is taken; one that has a
    `DistributedSampler` gives each process its own already. Samples that the sampler repeats so
    that all processes get as many are left out: no sample counts twice.

    The first `done` batches were scored before. There may be `limit` batches, of all processes
    together; without a limit, a loader that has no length is stopped, with a warning, where it
    seems never to end.
    """
    rank, processes = rank_and_world_size()
    sampler = _distributed_sampler(loader)
    if sampler is None:
        batches, numbers = iter(loader), count()
    else:
        batches, numbers = _without_padding(loader, sampler), count(rank, processes)
        limit = None if limit is None else len(range(rank, limit, processes))
    if limit is None and loader_length(loader) is None:
        batches = _capped(batches)
    for number, batch in zip(numbers, islice(batches, limit), strict=False):
        if number >= done and number % processes == rank:
            yield number, batch


def own_share(loader: Iterable[Any], done: int, limit: int | None) -> tuple[int, int | None]:
    """Return how many batches of this process were scored before, and how many there are.

    The second is None if the loader does not know; the arguments are those of `own_batches`.
    """
    check_batches(limit)
    rank, processes = rank_and_world_size()
    length = loader_length(loader)
    if length is not None and _distributed_sampler(loader) is not None:
        length *= processes
    known = [number for number in (length, limit) if number is not None]
    total = len(range(rank, min(known), processes)) if known else None
    return len(range(rank, done, processes)), total


def loader_length(loader: Iterable[Any]) -> int | None:
    """Return how many batches a loader has, if it knows; one of a stream raises instead."""
    try:
        return int(loader.__len__())  # type: ignore[attr-defined]  # wrappers pass it on
    except (AttributeError, TypeError):
        return None


def _capped(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches up to a number that no choice of neurons needs."""
    yield from islice(batches, MOST_UNSIZED_BATCHES)
    if next(batches, None) is not None:
        warnings.warn(
            f"the loader has no length, and was stopped after {MOST_UNSIZED_BATCHES} batches; "
            "give batches= to score with another number",
            stacklevel=2,
        )


def _distributed_sampler(loader: Iterable[Any]) -> DistributedSampler[Any] | None:
    samplers = [getattr(loader, "sampler", None)]
    samplers += [getattr(getattr(loader, "batch_sampler", None), "sampler", None)]
    return next((each for each in samplers if isinstance(each, DistributedSampler)), None)


def _without_padding(loader: Iterable[Any], sampler: DistributedSampler[Any]) -> Iterator[Any]:
    """Yield a process's batches, without the samples that a sampler repeats to fill shards."""
    cases = len(cast(Sized, sampler.dataset))
    left = len(range(sampler.rank, cases, sampler.num_replicas))
    for batch in loader:
        size = batch_size(batch)
        if left >= size:
            yield batch
        elif left > 0:
            yield samples(batch, slice(left))
        left = max(left - size, 0)


def sum_over_processes(scores: Scores, device: torch.device) -> Scores:
    """Add the scores of all processes, in one reduction; a process without batches adds zeros.

    What the weights alone say is taken from the first process, so that all have the same bits.
    """
    rank, processes = rank_and_world_size()
    if processes == 1:
        return scores
    own: dict[str, Any] = {
        "batches": torch.tensor(scores.batches, dtype=torch.float64),
        "sums": scores.sums,
        "weight_sums": scores.weight_sums,
        "constants": scores.constants,
    }
    if rank > 0:
        own["constants"] = pytree.tree_map(torch.zeros_like, own["constants"])
    tensors, spec = pytree.tree_flatten(own)
    flat = torch.cat([t.reshape(-1).double() for t in tensors]).to(device)
    dist.all_reduce(flat)
    pieces = zip(flat.cpu().split([t.numel() for t in tensors]), tensors, strict=True)
    total = pytree.tree_unflatten([piece.reshape(t.shape).to(t) for piece, t in pieces], spec)
    return replace(scores, **{**total, "batches": int(total["batches"])})
