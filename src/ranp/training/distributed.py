"""What the processes of a run tell each other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


def interleaved(fabric: Fabric, own: list[T]) -> list[T]:
    """Gather items in the data set's order: process r of n has items r, r + n, ...

    They travel as JSON, which keeps every float as it is.
    """
    if fabric.world_size == 1:
        return own
    parts = [json.loads(text) for text in _gather_bytes(fabric, json.dumps(own).encode())]
    total = sum(map(len, parts))
    return [parts[i % fabric.world_size][i // fabric.world_size] for i in range(total)]


def _gather_bytes(fabric: Fabric, own: bytes) -> list[bytes]:
    lengths = _gather(fabric, torch.tensor([len(own)], device=fabric.device)).flatten().tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=fabric.device)
    padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    rows = _gather(fabric, padded).cpu().numpy()
    return [row[:n].tobytes() for row, n in zip(rows, lengths, strict=True)]


def _gather(fabric: Fabric, tensor: Tensor) -> Tensor:
    """One row per process."""
    rows = [torch.empty_like(tensor) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(rows, tensor)
    return torch.stack(rows)


def summed(fabric: Fabric, values: list[float]) -> list[float]:
    """Sum numbers over all processes."""
    if fabric.world_size == 1:
        return values
    total = torch.tensor(values, dtype=torch.float64, device=fabric.device)
    torch.distributed.all_reduce(total)
    result: list[float] = total.tolist()
    return result


def share_buffers(fabric: Fabric, model: nn.Module) -> None:
    """Broadcast the buffers of the first process, such as batch norm's statistics."""
    if fabric.world_size > 1:
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, src=0)
