"""The machine that is measured: what it is, and whether anybody else is using it."""

from __future__ import annotations

import os
import platform
import statistics
import time
from pathlib import Path

import torch

_SAMPLES, _PAUSE = 10, 0.02
BUSY = 0.5
"""So many processes beside our own, on average, make a measurement worthless."""


def device_name(device: torch.device) -> str:
    """The processor that a device is."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return str(device.type)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def describe_machine(device: torch.device) -> dict[str, str | int]:
    """What a measured time depends on beside the work itself."""
    return {
        "device": device_name(device),
        "capability": torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else "",
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def load() -> float:
    """The system's load average over the last minute; 0 where there is none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def others_running() -> float:
    """How many threads of other processes want a processor right now, on average; 0 if unknown.

    Unlike the load average this does not count what this process did a moment ago.
    """
    loadavg = Path("/proc/loadavg")
    if not loadavg.exists():
        return 0.0
    samples = []
    for _ in range(_SAMPLES):
        time.sleep(_PAUSE)
        running = int(loadavg.read_text().split()[3].partition("/")[0])
        samples.append(running - 1)  # we are running while we look
    return statistics.fmean(samples)
