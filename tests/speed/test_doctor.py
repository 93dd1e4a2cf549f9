"""`ranp doctor` finds what it looks for, and says so only then."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
import torch

from ranp.resources.machine import vector_width
from ranp.resources.measuring import Timing
from ranp.speed import doctor, keep_freed_memory, return_freed_memory
from tests.fresh import FORKS


def test_every_check_answers():
    threads = torch.get_num_threads()
    found = doctor.diagnose()
    assert len(found.findings) == len(doctor.CHECKS)
    assert len({finding.name for finding in found.findings}) == len(doctor.CHECKS)
    for finding in found.findings:
        assert finding.measured and bool(finding.advice) == finding.is_trap
    assert found.machine["torch"] == torch.__version__ and found.machine["cores"] >= 1
    assert torch.backends.cpu.get_cpu_capability() in found.machine["capability"]
    assert found.machine["vector"] == f"{vector_width()} floats"
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("slow", "is_trap"), [(2.0, True), (1.1, False), (0.5, False)])
def test_a_trap_is_what_costs_something(monkeypatch, slow, is_trap):
    timings = {"slow": Timing((slow / 1e3,)), "fast": Timing((1e-3,))}
    monkeypatch.setattr(doctor, "time_in_turns", lambda actions, repetitions: timings)
    finding = doctor.denormals()
    assert finding.is_trap == is_trap and finding.factor == pytest.approx(slow)
    assert finding.measured.endswith(f"1e-39 against 1e-3: {slow:.1f} ms against 1.0 ms")
    assert finding.advice.startswith("torch.set_flush_denormal") == is_trap
    assert bool(finding.advice) == is_trap


def test_others_at_work_are_a_trap(monkeypatch):
    monkeypatch.setattr(doctor, "others_running", lambda: 3.0)
    finding = doctor.threads()
    assert finding.is_trap and "3.0 other threads" in finding.measured


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_is_kept_only_until_it_is_returned():
    """64 MiB that were written to and freed stay with the process, then go back to the system.

    In a process of its own: one that has run other tests may have holes of that size.
    """
    with FORKS.Pool(1) as pool:
        kept, returned, again = pool.apply(_freed_memory)
    assert kept - returned > 2**25
    assert again - returned < 2**25


def _freed_memory() -> tuple[int, int, int]:
    assert keep_freed_memory()
    torch.full((2**24,), 1.0)
    kept = _resident_bytes()
    assert return_freed_memory()
    returned = _resident_bytes()
    torch.full((2**24,), 2.0)
    return kept, returned, _resident_bytes()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
