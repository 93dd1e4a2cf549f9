"""Memory layouts of volumes: channels first, as PyTorch has them, or last."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Layout = Literal["standard", "channels-last"]


def as_layout(x: Tensor, layout: Layout) -> Tensor:
    """A volume in a memory layout; a transposition per sample, which PyTorch does blockwise."""
    last = torch.channels_last_3d
    if layout == "channels-last":
        if x.is_contiguous(memory_format=last):
            return x
        if not x.is_contiguous():
            return x.contiguous(memory_format=last)
        samples, channels, *space = x.shape
        out = x.new_empty(samples, *space, channels)
        for i in range(samples):
            out[i].flatten(0, 2).copy_(x[i].flatten(1).t())
        return out.permute(0, 4, 1, 2, 3)
    if x.is_contiguous():
        return x
    if not x.is_contiguous(memory_format=last):
        return x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for i in range(x.shape[0]):
        out[i].flatten(1).copy_(x[i].flatten(1))
    return out


def layout_of(x: Tensor) -> Layout:
    """The layout a volume is in; what fits both is standard."""
    last = x.is_contiguous(memory_format=torch.channels_last_3d)
    return "channels-last" if last and not x.is_contiguous() else "standard"


def owned(x: Tensor) -> Tensor:
    """The same tensor, no longer known as a view: what follows may then change it in place."""
    if not x._is_view():
        return x
    storage = x.untyped_storage()
    return x.new_empty(0).set_(storage, x.storage_offset(), x.shape, x.stride())


def is_plain(x: Tensor) -> bool:
    """Whether a volume is an ordinary float32 tensor on a CPU, and nothing traces or transforms."""
    return (
        type(x) is Tensor
        and x.dim() == 5
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
    )
