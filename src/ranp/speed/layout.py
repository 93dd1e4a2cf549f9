"""Memory layouts of volumes: channels first, as PyTorch has them, or last."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Layout = Literal["standard", "channels-last"]


def as_layout(x: Tensor, layout: Layout) -> Tensor:
    """Return a volume in a memory layout, transposed sample by sample, which is fastest."""
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
    """Return the layout a volume is in; what fits both is standard."""
    last = x.is_contiguous(memory_format=torch.channels_last_3d)
    return "channels-last" if last and not x.is_contiguous() else "standard"


def is_channels_last(x: object) -> bool:
    """Return whether x is a plain volume (see `is_plain`) whose channels are last in memory."""
    return isinstance(x, Tensor) and is_plain(x) and layout_of(x) == "channels-last"


def owned(x: Tensor) -> Tensor:
    """Return the same tensor, no longer known as a view, so that it may be changed in place."""
    if not x._is_view():
        return x
    storage = x.untyped_storage()
    return x.new_empty(0).set_(storage, x.storage_offset(), x.shape, x.stride())


def is_plain(x: Tensor) -> bool:
    """Return whether x is an ordinary float32 volume on a CPU, not traced or transformed."""
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
