"""`make matrix`: run the tests as other machines would, and print what could not be imitated.

For each machine, those tests run that what is different there can reach, and are named;
`make matrix TESTS=tests` runs all of them everywhere, `TESTS="tests/resources tests/speed"` some,
`MACHINES="wheel Python"` on the machines whose name has one of these words.
Other Pythons and the lowest versions of pyproject.toml get environments of their own in
build/matrix, made once. Where pip finds no other PyTorch, it takes the one with gigabytes of CUDA
libraries; with `PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu` it finds one without.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.environments import NotMade, environment, find_python, lowest_versions

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")

# What kernels and threads decide: values, plans, memory and speed.
NUMBERS = (
    "tests/resources",
    "tests/speed",
    "tests/slimming",
    "tests/fitting/test_fit.py",
    "tests/pruning/test_golden_values.py",
    "tests/pruning/test_mask_gradients.py",
    "tests/faults/test_scoring.py",
)
# What a locale, a home or a path decides: files, pages, commands.
PLACES = (
    "tests/test_files.py",
    "tests/recording",
    "tests/faults",
    "tests/extension",
    "tests/report/test_page.py",
    "tests/cli/test_commands.py",
    "tests/training/test_config.py",
    "tests/training/test_ownership.py",
)
# What versions decide: syntax, and how others' packages are called.
VERSIONS = (
    "tests/test_api.py",
    "tests/test_files.py",
    "tests/test_schemas.py",
    "tests/slimming",
    "tests/graph/test_refusals.py",
    "tests/models/test_registry.py",
    "tests/exporting/test_contract.py",
    "tests/cli/test_commands.py",
    "tests/training/test_config.py",
    "tests/training/test_checkpoint.py",
    "tests/training/test_resume.py",
)


@dataclass(frozen=True)
class Machine:
    """Another machine to imitate.

    Attributes:
        name: What is different there.
        tests: The tests that this can reach.
        env: Environment variables.
        place: Where the tests run: "source", "elsewhere" (another working directory), "odd path"
            (a copy of the tree under spaces and umlauts) or "wheel" (the built package).
        python: A Python to make an environment of its own with; empty for the one that runs.
        constraints: Versions of packages there.
        options: Further options of pytest.
        missing: Why it cannot be imitated here; empty if it can.
    """

    name: str
    tests: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    place: str = "source"
    python: str = ""
    constraints: str = ""
    options: tuple[str, ...] = ()
    missing: str = ""


def machines() -> Iterator[Machine]:
    """Yield the machines that the tests should pass on."""
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    yield Machine("ASCII locale", PLACES, ascii_locale)
    no_home = {"HOME": "/proc/1", "XDG_CACHE_HOME": "/proc/1"}
    yield Machine("home cannot be written", PLACES, no_home)
    yield Machine("another working directory", PLACES, place="elsewhere")
    yield Machine("path with spaces and umlauts", PLACES, place="odd path")
    yield Machine("built wheel", (*PLACES, "tests/test_api.py"), place="wheel")
    yield from _versions()
    yield from _processors()


def _processors() -> Iterator[Machine]:
    """Yield machines with other vectors and other numbers of threads."""
    own = torch.backends.cpu.get_cpu_capability()
    for capability, isa in (("default", "SSE41"), ("avx2", "AVX2"), ("avx512", "AVX512_CORE")):
        missing = ""
        if capability == "avx512" and not torch.cpu._is_avx512_supported():
            missing = "the processor has no AVX-512"
        if own == capability.upper():
            missing = "it is this machine's own: make test"
        for library, env in (
            ("ATen", {"ATEN_CPU_CAPABILITY": capability}),
            ("oneDNN", {"ONEDNN_MAX_CPU_ISA": isa}),
        ):
            name = f"{library} {next(iter(env.values()))}"
            yield Machine(name, NUMBERS, env, missing=missing)
    for threads in ("2", "4"):  # one is what all others have
        yield Machine(f"threads: {threads}", NUMBERS, {"OMP_NUM_THREADS": threads})


def _versions() -> Iterator[Machine]:
    """Yield machines with other Pythons, and with the lowest versions of packages."""
    here = ".".join(map(str, sys.version_info[:2]))
    found = {version: find_python(version) for version in PYTHONS}
    usual = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for version, python in found.items():
        if version != here:
            missing = "" if python else f"there is no python{version}"
            yield Machine(
                f"Python {version}", VERSIONS, python=python, constraints=usual, missing=missing
            )
    lowest = next(python for python in (*found.values(), sys.executable) if python)
    # Old packages are used in ways that newer ones beside them call deprecated; we are not.
    old = ("-W", "default::DeprecationWarning")
    yield Machine(
        "lowest versions", VERSIONS, python=lowest, constraints=lowest_versions(), options=old
    )


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


def run(machine: Machine, tests: Sequence[str]) -> str:
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
    asked, wanted = tuple(sys.argv[1:]), os.environ.get("MACHINES", "").split()
    failed, said = False, ()
    for machine in machines():
        if wanted and not any(word in machine.name for word in wanted):
            continue
        tests, before = asked or machine.tests, _cpu_seconds()
        if tests != said and not machine.missing:
            print(f"tests of what follows: {' '.join(tests)}", flush=True)
            said = tests
        try:
            result = f"--   not done: {machine.missing}" if machine.missing else run(machine, tests)
        except NotMade as why:
            result = f"--   not done: {why}"
        failed |= result.startswith("FAIL")
        took = f" ({_cpu_seconds() - before:.0f} CPU s)" if result[:2] != "--" else ""
        head, *more = result.split("\n")
        print("\n".join([f"{machine.name:<36} {head}{took}", *more]), flush=True)
    return int(failed)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
