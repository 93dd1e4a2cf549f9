"""What slows this machine down: each trap with its measured cost, and what to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ranp._version import __version__
from ranp.resources.machine import (
    BUSY,
    describe_machine,
    load,
    others_running,
    proc_bytes,
    vector_width,
)
from ranp.resources.measuring import time_in_turns
from ranp.speed.convolution import DATA, FORWARD, WEIGHT
from ranp.speed.geometry import Geometry
from ranp.speed.layout import as_layout

_REPETITIONS = 3
_WORTH_SAYING = 1.15  # what costs less than this factor is no trap
_SAME = Geometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1)


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: What it is about.
        is_trap: Whether it costs something here.
        measured: What was found, with numbers.
        advice: What to do; empty if nothing.
        factor: How many times as long the slow way takes; None where that is not the question.
    """

    name: str
    is_trap: bool
    measured: str
    advice: str = ""
    factor: float | None = None


@dataclass(frozen=True)
class Diagnosis:
    """The machine, and what was found.

    Attributes:
        machine: Device, threads, memory, versions, load.
        findings: Traps and what turned out to be none.
    """

    machine: dict[str, Any]
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"machine": self.machine, "findings": [asdict(each) for each in self.findings]}


def diagnose() -> Diagnosis:
    """Examine the machine; takes a few seconds."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        findings = tuple(check() for check in CHECKS)
    return Diagnosis(_machine(), findings)


def _machine() -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        **describe_machine(device),
        "cores": _cores(),
        "memory_bytes": pages * os.sysconf("SC_PAGE_SIZE") if pages else None,
        "available_bytes": proc_bytes("/proc/meminfo", "MemAvailable"),
        "ranp": __version__,
        "onednn": torch.backends.mkldnn.is_available(),
        "vector": f"{vector_width()} floats",
        "load": round(load(), 1),
    }


def _cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _compared(
    name: str, what: str, slow: Callable[[], Any], fast: Callable[[], Any], advice: str
) -> Finding:
    """Time two ways to do the same; it is a trap if the slow one is much slower."""
    timings = time_in_turns({"slow": slow, "fast": fast}, _REPETITIONS)
    a, b = (1e3 * timings[way].fastest for way in ("slow", "fast"))
    measured = f"{what}: {a:.1f} ms against {b:.1f} ms"
    return _finding(name, a / b > _WORTH_SAYING, measured, advice, a / b)


def _finding(
    name: str, is_trap: bool, measured: str, advice: str, factor: float | None = None
) -> Finding:
    """Return a finding, with its advice only where there is a trap."""
    return Finding(name, is_trap, measured, advice if is_trap else "", factor)


def _volume(channels: int, edge: int, samples: int = 1) -> Tensor:
    return torch.randn(samples, channels, edge, edge, edge)


def thin_convolutions() -> Finding:
    """PyTorch sends thin Conv3d at batch 1 to a slow path."""
    x, weight = _volume(8, 48), torch.randn(8, 8, 3, 3, 3)
    return _compared(
        "thin Conv3d at batch 1",
        "8 -> 8 channels at 48^3, PyTorch's choice against oneDNN",
        lambda: FORWARD["library"](x, weight, None, _SAME),
        lambda: FORWARD["onednn"](x, weight, None, _SAME),
        "ranp.optimize(model, batch) calls oneDNN itself; or train with batches of 2",
    )


def narrowing_convolutions() -> Finding:
    """The weight gradient of a convolution from many channels to few."""
    x, grad = (as_layout(_volume(channels, 32, 2), "channels-last") for channels in (48, 8))
    weight = torch.randn(8, 48, 3, 3, 3)
    return _compared(
        "weight gradient of narrowing Conv3d",
        "48 -> 8 channels at 32^3, oneDNN's way against its mirror image",
        lambda: WEIGHT["library"](grad, x, weight, _SAME),
        lambda: WEIGHT["swapped"](grad, x, weight, _SAME),
        "ranp.optimize(model, batch) computes it the other way round",
    )


def memory_layout() -> Finding:
    """Standard layout against channels last."""
    weight = torch.randn(16, 16, 3, 3, 3)
    pairs = {
        layout: (as_layout(_volume(16, 32, 2), layout), as_layout(_volume(16, 32, 2), layout))
        for layout in ("standard", "channels-last")
    }

    def work(layout: str) -> None:
        x, grad = pairs[layout]
        FORWARD["library"](x, weight, None, _SAME)
        DATA["library"](grad, x, weight, _SAME)
        WEIGHT["library"](grad, x, weight, _SAME)

    return _compared(
        "memory layout",
        "16 -> 16 channels at 32^3 with gradients, standard against channels last",
        lambda: work("standard"),
        lambda: work("channels-last"),
        "ranp.optimize(model, batch), or model.to(memory_format=torch.channels_last_3d)",
    )


def fresh_memory() -> Finding:
    """What glibc gives back to the system must be taken again, page by page."""
    elements = 2**24
    kept = torch.empty(elements)
    return _compared(
        "memory allocated again",
        "writing 64 MiB to new memory against memory that is already mapped",
        lambda: torch.empty(elements).fill_(1.0),
        lambda: kept.fill_(1.0),
        "ranp.optimize(..., keep_memory=True), or ranp.speed.keep_freed_memory() once at the start",
    )


def denormals() -> Finding:
    """Numbers too small for the usual representation."""
    usual = torch.full((2**22,), 1e-3)
    tiny = torch.full((2**22,), 1e-39)
    return _compared(
        "denormal numbers",
        "scaling 4 million numbers of 1e-39 against 1e-3",
        lambda: tiny * 0.5,
        lambda: usual * 0.5,
        "torch.set_flush_denormal(True) before training",
    )


def channels_last_statistics() -> Finding:
    """PyTorch's batch norm over channels-last volumes adds up in single precision."""
    x = as_layout(0.7 * _volume(8, 48) + 0.5, "channels-last")
    exact = x.double().var((0, 2, 3, 4), correction=0)
    running = torch.zeros(8), torch.ones(8)
    F.batch_norm(x, *running, training=True, momentum=1.0)
    voxels = x.numel() / 8
    error = ((running[1] * (voxels - 1) / voxels - exact).abs() / exact).max().item()
    return _finding(
        "batch norm with channels last",
        error > 1e-6,
        f"variance over 48^3 voxels wrong by {error:.0e}",
        "ranp.optimize replaces it by an exact batch norm",
    )


def threads() -> Finding:
    """More threads than free processors make thin layers slower, not faster."""
    count, cores, others = torch.get_num_threads(), _cores(), others_running()
    x, grad = _volume(14, 32, 2), _volume(14, 32, 2)
    weight = torch.randn(14, 14, 3, 3, 3)

    def work() -> None:
        WEIGHT["library"](grad, x, weight, _SAME)

    text = f"{count} compute threads on {cores} cores, {others:.1f} other threads running"
    factor = None
    if count > 1:
        together = time_in_turns({"": work}, _REPETITIONS)[""].median
        torch.set_num_threads(1)
        try:
            alone = time_in_turns({"": work}, _REPETITIONS)[""].median
        finally:
            torch.set_num_threads(count)
        factor = together / alone
        text += f"; a thin weight gradient takes {1e3 * together:.1f} ms on {count} threads and "
        text += f"{1e3 * alone:.1f} ms on one"
    is_trap = count > cores or others > BUSY or (factor is not None and factor > 1)
    advice = "compute threads + loader workers + other work <= cores: set OMP_NUM_THREADS"
    return _finding("threads", is_trap, text, advice, factor)


def compiler() -> Finding:
    """torch.compile needs one on a CPU; nothing here does."""
    found = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    text = f"found {found}" if found else "none: torch.compile will not work on the CPU"
    return Finding("C++ compiler", False, text)


CHECKS: tuple[Callable[[], Finding], ...] = (
    thin_convolutions,
    narrowing_convolutions,
    memory_layout,
    fresh_memory,
    denormals,
    channels_last_statistics,
    threads,
    compiler,
)
"""All checks, in this order. A new one is a new function here."""
