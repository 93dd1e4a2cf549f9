"""Scoring by several processes: each takes its share of the batches, one sum joins them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data.distributed import DistributedSampler

from ranp.pruning.scores import ByLayer, Scores


def place() -> tuple[int, int]:
    """The number of this process, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def own_batches(loader: Iterable[Any], done: int, limit: int | None) -> Iterator[tuple[int, Any]]:
    """The batches of this process, with their numbers from 0 over all processes.

    From a loader that gives all processes the same batches, every n-th is taken; one that has a
    `DistributedSampler` gives each process its own already. Nothing is padded here.

    Args:
        loader: Yields batches.
        done: Batches that were scored before, by all processes together.
        limit: How many batches there may be, of all processes together.
    """
    rank, processes = place()
    sharded = _is_sharded(loader)
    numbers = count(rank, processes) if sharded else count()
    if limit is not None and sharded:
        limit = len(range(rank, limit, processes))
    for number, batch in zip(numbers, islice(loader, limit), strict=False):
        if number >= done and number % processes == rank:
            yield number, batch


def _is_sharded(loader: Iterable[Any]) -> bool:
    samplers = [getattr(loader, "sampler", None)]
    samplers += [getattr(getattr(loader, "batch_sampler", None), "sampler", None)]
    return any(isinstance(sampler, DistributedSampler) for sampler in samplers)


def sum_over_processes(scores: Scores, device: torch.device) -> Scores:
    """One sum of everything over all processes; a process without batches adds zeros.

    What the weights alone say is taken from the first process, so that all have the same bits.
    """
    rank, processes = place()
    if processes == 1:
        return scores
    batches = {"": {"": torch.tensor([scores.batches], dtype=torch.float64)}}
    groups: list[Mapping[str, ByLayer]] = [scores.sums, scores.weight_sums, scores.constants]
    tensors = [t for g in [*groups, batches] for layers in g.values() for t in layers.values()]
    flat = torch.cat([t.reshape(-1).double() for t in tensors])
    if rank > 0:
        size = sum(t.numel() for layers in scores.constants.values() for t in layers.values())
        flat[-1 - size : -1] = 0
    flat = flat.to(device)
    dist.all_reduce(flat)
    pieces = iter(flat.cpu().split([t.numel() for t in tensors]))

    def summed(group: Mapping[str, ByLayer]) -> dict[str, dict[str, Tensor]]:
        return {
            statistic: {name: next(pieces).reshape(t.shape).to(t) for name, t in by_layer.items()}
            for statistic, by_layer in group.items()
        }

    sums, weight_sums, constants = map(summed, groups)
    return replace(
        scores,
        batches=int(next(pieces)),
        sums=sums,
        weight_sums=weight_sums,
        constants=constants,
    )
