"""`make matrix`: run the tests as other machines would, and print what could not be imitated.

`make matrix TESTS="tests/resources tests/speed"` runs some of them only.
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
        missing: Why it cannot be imitated here; empty if it can.
    """

    name: str
    env: dict[str, str] = field(default_factory=dict)
    place: str = "source"
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
    for version in PYTHONS:
        if version != here:
            found = shutil.which(f"python{version}")
            why = f"found {found}, but it has no torch" if found else "is not installed"
            yield Machine(f"Python {version}", missing=f"python{version} {why}")
    yield Machine("lowest versions of pyproject.toml", missing="needs an environment of its own")


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
    with placed(machine.place) as (directory, root, package):
        paths = f"{package}{os.pathsep}{root}"
        env = {**os.environ, "OMP_NUM_THREADS": "1", **machine.env, "PYTHONPATH": paths}
        where = [str(root / test) for test in tests]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-c", str(root / "pyproject.toml"), "--rootdir", str(root), "-rA", *where]
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
        results[machine.name] = (
            f"--   not done: {machine.missing}" if machine.missing else run(machine, tests)
        )
        print(f"{machine.name:<36} {results[machine.name]}", flush=True)
    return int(any(result.startswith("FAIL") for result in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
