"""Fresh processes without the wait for imports: forks of a server that has torch loaded.

The server knows of ranp what reads data sets (`ranp.datasets`), and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess

FORKS = multiprocessing.get_context("forkserver")
# Tracing and training import torch._dynamo, which takes as long as torch itself.
FORKS.set_forkserver_preload(["torch", "torch._dynamo", "ranp.datasets"])


def run_fresh(program: str, *arguments: object, cwd: Path, **env: str) -> CompletedProcess[str]:
    """Runs a program in a process of its own, as `python -c program` does.

    Args:
        program: Python code.
        arguments: The program's arguments.
        cwd: Directory that it runs in.
        env: Environment variables; those that torch reads when it is imported have no effect.
    """
    with tempfile.TemporaryDirectory() as directory:
        process = start_fresh(program, *arguments, cwd=cwd, printed=Path(directory), **env)
        process.join()
        printed = [Path(directory, name).read_text() for name in ("stdout", "stderr")]
    assert process.exitcode is not None
    return CompletedProcess([*map(str, arguments)], process.exitcode, *printed)


def start_fresh(
    program: str, *arguments: object, cwd: Path, printed: Path, **env: str
) -> ForkServerProcess:
    """Starts what `run_fresh` runs; prints to the files `stdout` and `stderr` of a directory."""
    files = [printed / name for name in ("stdout", "stderr")]
    setting = (cwd, {**os.environ, **env}, files)
    process = FORKS.Process(target=_run, args=(program, [*map(str, arguments)], *setting))
    process.start()
    return process


def _run(
    program: str, arguments: list[str], cwd: Path, env: dict[str, str], files: list[Path]
) -> None:
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["-c", *arguments]
    sys.path.insert(0, "")
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
