"""Fake tensors created directly, bypassing their dispatcher.

Dispatching takes longer than the operation on shapes itself: most of the time of a trace, and of a
simulated training step. Results that are certain to be the same are created here.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)

_CPU = torch.device("cpu")


@contextmanager
def quiet_fake_mode() -> Iterator[FakeTensorMode]:
    """Enter a mode of fake tensors, without warnings and without its log.

    Warnings are about values, and there are none; operations that fail are for us to report.
    """
    log = logging.getLogger(fake_tensor.__name__)
    was_disabled, log.disabled = log.disabled, True
    try:
        with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            warnings.simplefilter("ignore")
            yield mode
    finally:
        log.disabled = was_disabled


def fake_empty(
    mode: FakeTensorMode,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device = _CPU,
) -> FakeTensor:
    """Return a new fake tensor, as `torch.empty` gives it inside of the mode."""
    with torch._C._DisableTorchDispatch():
        meta = torch.empty(shape, dtype=dtype, device="meta")
    return FakeTensor(mode, meta, device)


def fake_empty_like(x: FakeTensor) -> FakeTensor:
    """Return a new fake tensor like a contiguous one."""
    return fake_empty(x.fake_mode, x.shape, x.dtype, x.fake_device)


def view_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a view of a fake tensor; None if the operation is not a view."""
    if not _is_view(func) or not args:
        return None
    x = args[0]
    if not isinstance(x, FakeTensor) or x.constant is not None:
        return None
    with in_kernel_invocation_manager(x.fake_mode):
        out = func(*args, **kwargs)
    if isinstance(out, Tensor):
        return FakeTensor(x.fake_mode, out, x.fake_device)
    return type(out)(FakeTensor(x.fake_mode, each, x.fake_device) for each in out)


@cache
def _is_view(func: Any) -> bool:
    """Return whether an operation always returns views: `reshape` and `to` may copy."""
    is_unsafe = func is torch.ops.aten._unsafe_view.default  # no view for autograd alone
    return is_unsafe or (func.is_view and not func._can_decompose())


def device_of(func: Any, args: tuple[Any, ...]) -> torch.device | None:
    """Return the device of a fake tensor if that is asked for, which is again and again."""
    is_asked = func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor)
    return args[0].fake_device if is_asked else None
