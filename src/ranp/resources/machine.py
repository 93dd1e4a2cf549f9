"""The machine that is measured: what it is, and whether anybody else is using it."""

from __future__ import annotations

import os
import platform
import statistics
import time
from pathlib import Path
from typing import Literal

import torch

_SAMPLES, _PAUSE = 10, 0.02
BUSY = 0.5
"""Average number of other running processes above which a measurement is worthless."""


def device_name(device: torch.device) -> str:
    """Return the processor that a device is."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return str(device.type)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def describe_machine(device: torch.device) -> dict[str, str | int]:
    """Return what a measured time depends on beside the work itself."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")  # oneDNN may use other vectors than ATen
    vectors = torch.backends.cpu.get_cpu_capability() + (f", oneDNN {limit}" if limit else "")
    return {
        "device": device_name(device),
        "capability": vectors if device.type == "cpu" else "",
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def onednn_kernels() -> Literal["AVX512", "AVX2", "SSE"]:
    """Return which vector instructions oneDNN uses.

    It asks the processor, and `ONEDNN_MAX_CPU_ISA`, but not `ATEN_CPU_CAPABILITY`.
    """
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    if limit.startswith("SSE") or not torch.cpu._is_avx2_supported():
        return "SSE"
    is_limited = limit == "AVX" or limit.startswith("AVX2")
    return "AVX512" if torch.cpu._is_avx512_supported() and not is_limited else "AVX2"


def vector_width() -> int:
    """Return how many float32 channels oneDNN takes at a time: a vector register, or two of SSE."""
    return 16 if onednn_kernels() == "AVX512" else 8


def proc_bytes(path: str, field: str) -> int | None:
    """Return a size that a file such as /proc/meminfo has in kB; None where there is none."""
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    found = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    size = next(found, None)
    return None if size is None else int(size) * 1024


def load() -> float:
    """Return the system's load average over the last minute; 0 where there is none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def others_running() -> float:
    """Return how many threads of other processes are running, on average; 0 if unknown.

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
