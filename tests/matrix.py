"""`make matrix`: run the tests as other machines would, and print what could not be imitated.

`make matrix TESTS="tests/resources tests/speed"` runs some of them only. Other Pythons and the
lowest versions of pyproject.toml get environments of their own in build/matrix, made once. Where
pip finds no other PyTorch, it takes the one with gigabytes of CUDA libraries; with
`PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu` it finds one without.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.environments import NotMade, environment, find_python, lowest_versions

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


@dataclass(frozen=True)
class Machine:
    """Another machine to imitate.

    Attributes:
        name: What is different there.
        env: Environment variables.
        place: Where the tests run: "source", "elsewhere" (another working directory), "odd path"
            (a copy of the tree under spaces and umlauts) or "wheel" (the built package).
        python: A Python to make an environment of its own with; empty for the one that runs.
        constraints: Versions of packages there.
        options: Further options of pytest.
        missing: Why it cannot be imitated here; empty if it can.
    """

    name: str
    env: dict[str, str] = field(default_factory=dict)
    place: str = "source"
    python: str = ""
    constraints: str = ""
    options: tuple[str, ...] = ()
    missing: str = ""


def machines() -> Iterator[Machine]:
    """Yield the machines that the tests should pass on."""
    no_avx512 = "" if torch.cpu._is_avx512_supported() else "the processor has no AVX-512"
    for capability in ("default", "avx2", "avx512"):
        missing = no_avx512 if capability == "avx512" else ""
        yield Machine(f"ATen {capability}", {"ATEN_CPU_CAPABILITY": capability}, missing=missing)
    for isa in ("SSE41", "AVX2", "AVX512_CORE"):
        missing = no_avx512 if isa.startswith("AVX512") else ""
        yield Machine(f"oneDNN {isa}", {"ONEDNN_MAX_CPU_ISA": isa}, missing=missing)
    for threads in ("1", "2", "4"):
        yield Machine(f"threads: {threads}", {"OMP_NUM_THREADS": threads})
    yield Machine("ASCII locale", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    yield Machine("home cannot be written", {"HOME": "/proc/1", "XDG_CACHE_HOME": "/proc/1"})
    yield Machine("another working directory", place="elsewhere")
    yield Machine("path with spaces and umlauts", place="odd path")
    yield Machine("built wheel", place="wheel")
    here = ".".join(map(str, sys.version_info[:2]))
    found = {version: find_python(version) for version in PYTHONS}
    usual = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for version, python in found.items():
        if version != here:
            missing = "" if python else f"there is no python{version}"
            yield Machine(f"Python {version}", python=python, constraints=usual, missing=missing)
    lowest = next(python for python in (*found.values(), sys.executable) if python)
    # Old packages are used in ways that newer ones beside them call deprecated; we are not.
    old = ("-W", "default::DeprecationWarning")
    yield Machine("lowest versions", python=lowest, constraints=lowest_versions(), options=old)


@contextmanager
def placed(place: str) -> Iterator[tuple[Path, Path, Path]]:
    """Yield working directory, root of the tests, and directory to import ranp from."""
    with tempfile.TemporaryDirectory(prefix="ranp-matrix-") as directory:
        temporary = Path(directory)
        if place == "elsewhere":
            yield temporary, ROOT, ROOT / "src"
        elif place == "source":
            yield ROOT, ROOT, ROOT / "src"
        else:
            copy = temporary / "Räume und Lücken"
            ignored = shutil.ignore_patterns(".venv", ".git", "build", "*_cache", "out")
            shutil.copytree(ROOT, copy, ignore=ignored)
            package = copy / "src"
            if place == "wheel":
                package = temporary / "installed"
                pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
                subprocess.run([*pip, "--target", package, copy], check=True)
                shutil.rmtree(copy / "src")
            yield copy, copy, package


def run(machine: Machine, tests: list[str]) -> str:
    """Run the tests and return how many passed, were skipped and failed."""
    python = sys.executable
    if machine.python:
        python = environment(machine.name, machine.python, machine.constraints)
    with placed(machine.place) as (directory, root, package):
        paths = f"{package}{os.pathsep}{root}"
        env = {"RANP_SHARED": str(ROOT.parent / "shared"), **os.environ, "OMP_NUM_THREADS": "1"}
        env |= {**machine.env, "PYTHONPATH": paths}
        where = [str(root / test) for test in tests]
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-c", str(root / "pyproject.toml"), "--rootdir", str(root), "-rA"]
        command += [*machine.options, *where]
        done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    counts = dict.fromkeys(("PASSED", "SKIPPED", "FAILED", "ERROR"), 0)
    for line in lines:
        word = line.partition(" ")[0]
        many = re.match(r"SKIPPED \[(\d+)\]", line)
        if word in counts:
            counts[word] += int(many[1]) if many else 1
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 1):
        failures += (lines + done.stderr.splitlines())[-3:]
    said = ", ".join(f"{count} {word.lower()}" for word, count in counts.items())
    return "\n    ".join([f"{'ok  ' if done.returncode == 0 else 'FAIL'} {said}", *failures])


def main() -> int:
    """Run all machines in turn; the exit code says whether the tests passed on each."""
    tests = sys.argv[1:] or ["tests"]
    results = {}
    for machine in machines():
        try:
            result = f"--   not done: {machine.missing}" if machine.missing else run(machine, tests)
        except NotMade as why:
            result = f"--   not done: {why}"
        results[machine.name] = result
        print(f"{machine.name:<36} {result}", flush=True)
    return int(any(result.startswith("FAIL") for result in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
