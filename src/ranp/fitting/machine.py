"""What this machine has: nothing is run here that is predicted not to fit."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ranp.errors import InfeasibleError
from ranp.resources.budgets import describe
from ranp.resources.machine import proc_bytes
from ranp.resources.training_memory import Device

_SHARE = 0.9  # the rest is for what is not a tensor, and for others


def default_device() -> Device:
    """Return "cuda" where there is one, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def available_memory(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        # What is cached can be had too.
        free = proc_bytes("/proc/meminfo", "MemAvailable") or free
    except (OSError, ValueError):
        return None
    limits = (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    )
    for limit, used in limits:
        try:
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such group, or no limit
            continue
    return max(free, 0)


def fits(needed: int, device: torch.device) -> bool:
    """Return whether so many bytes can safely be allocated here."""
    free = available_memory(device)
    return free is None or needed <= _SHARE * free


def check_fits(needed: int, device: torch.device, what: str, way_out: str) -> None:
    """Refuse to run what would not fit: what is needed, what there is, and the way out."""
    if not fits(needed, device):
        free = available_memory(device) or 0
        raise InfeasibleError(
            f"{what} is predicted to take {describe('memory', needed)}, and this machine has "
            f"{describe('memory', free)} left; {way_out}"
        )
