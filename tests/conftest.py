"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fresh import FORKS

# In some virtual machines oneDNN's AMX kernels end in an illegal instruction: bfloat16 transposed
# convolutions do, without ranp. Tests do without them; oneDNN reads this when it is loaded.
_CPUINFO = Path("/proc/cpuinfo")
if _CPUINFO.exists() and " amx_tile" in _CPUINFO.read_text():
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Shells start background jobs with Ctrl-C ignored, and processes that tests start would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on what else the machine does; a test must not.
settings.register_profile("ranp", deadline=None)
settings.load_profile("ranp")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spares the garbage collector the millions of objects of imported packages, which stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real sample data; tests that need it are skipped where it is absent."""
    root = Path(os.environ.get("RANP_SHARED", Path(__file__).parents[1].parent / "shared"))
    if not (root / "data").is_dir():
        pytest.skip("no real sample data: set RANP_SHARED to the folder that holds data/")
    return root / "data"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Measured times are kept with the tests, not with the user's."""
    os.environ["RANP_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that would be spawned are forks of a server that has torch loaded."""
    monkeypatch.setattr("multiprocessing.get_context", lambda method: FORKS)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run beside each other are no reason not to keep what was measured."""
    monkeypatch.setattr("ranp.resources.timing_cache.others_running", lambda: 0.0)
