"""Environments of their own for `make matrix`: other Pythons, the lowest versions promised."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it where Python has none

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "build" / "matrix"
TOOLS = {"dev", "docs"}  # extras of those who work on ranp; users are promised the others
ALONE = {"nnunet"}  # an extra that brings a torchvision, which must go again


class NotMade(Exception):
    """An environment could not be made; the message says why."""


def find_python(version: str) -> str:
    """Return the path of a Python that starts, such as "3.12"; empty if there is none."""
    pyenv = Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in (shutil.which(f"python{version}"), *sorted(map(str, pyenv))):
        if path and _output(path, "-c", code).stdout.strip() == version:
            return path
    return ""


def lowest_versions() -> str:
    """Return the lowest versions that pyproject.toml promises to users, as pip's constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = [name for name in extras if name not in TOOLS | ALONE]
    wanted = [*project["dependencies"], *(each for name in named for each in extras[name])]
    return "".join(
        f"{requirement.name}=={each.version}\n"
        for requirement in map(Requirement, wanted)
        for each in requirement.specifier
        if each.operator == ">="
    )


def environment(name: str, python: str, constraints: str) -> str:
    """Return the Python of an environment with ranp's extras, made if there is none as asked for.

    Args:
        name: Its directory in build/matrix.
        python: The Python to make it with.
        constraints: Versions, one `package==version` in a line.

    Raises:
        NotMade: pip found no such packages, or they do not import.
    """
    directory = TARGET / name.replace(" ", "-").lower()
    made, own = directory / "constraints.txt", str(directory / "bin" / "python")
    if made.exists() and made.read_text(encoding="utf-8") == constraints:
        return own
    print(f"{name}: installing into {directory}; this takes minutes", file=sys.stderr, flush=True)
    _succeed(python, "-m", "venv", "--clear", str(directory))
    asked = directory / "asked.txt"
    asked.write_text(constraints, encoding="utf-8")
    _succeed(own, "-m", "pip", "install", "--quiet", "-c", str(asked), f"{ROOT}[dev]")
    _succeed(own, "-c", "import torch, numpy; torch.ones(1).numpy()")
    asked.rename(made)
    return own


def _succeed(*command: str) -> None:
    """Run a command, or raise the line of its output that says why it failed."""
    done = _output(*command)
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise NotMade(" ".join((errors or lines or [f"exit code {done.returncode}"])[-1:]))


def _output(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
