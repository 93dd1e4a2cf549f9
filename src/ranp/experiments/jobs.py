"""Cells computed by several processes: of this machine, or jobs of a cluster's scheduler.

They share a store, which hands every cell to one process only and loses nothing if a process is
killed. Any other engine can do the same: start the command once per worker on a common file system.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import torch

from ranp.errors import RanpError, UsageError
from ranp.trials.store import Cell, Compute, OnCell, Store, ignore_cell
from ranp.user_code import describe_failure, load_module, loaded_modules

Cluster = Literal["slurm", "local"]
Jobs = int | Cluster
"""Number of processes on this machine, or the executor of submitit that jobs are given to."""

_POLL_SECONDS = 1.0
_MOST_MINUTES = 24 * 60  # of a job, unless SBATCH_TIMELIMIT says otherwise


def parse_jobs(text: str) -> Jobs:
    """Return the jobs for "4", "slurm" or "local"."""
    if text in get_args(Cluster):
        return cast(Cluster, text)
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--jobs must be a positive number or slurm, got '{text}'")
    return int(text)


def complete_cells(
    store: Store,
    cells: Sequence[Cell],
    compute: Compute,
    on_cell: OnCell = ignore_cell,
    jobs: Jobs = 1,
) -> int:
    """Compute what is missing of some cells, and return when all of them are complete.

    Results do not depend on `jobs`: every process computes with as many threads as this one. With
    several, `compute` must be picklable. Returns the number of cells that were computed here, or by
    jobs of a cluster.
    """
    if isinstance(jobs, str):
        return _submit(jobs, _Worker(store, compute), cells, on_cell)
    with _helpers(jobs - 1, _Worker(store, compute), cells):
        return store.complete(cells, compute, on_cell, wait=True)


@dataclass(frozen=True)
class _Worker:
    """Computes cells in another process as this one does.

    It takes as many threads, and loads the same modules of the user, which may register methods,
    networks and data sets. As a job that is preempted or timed out, it is requeued and resumes.
    """

    store: Store
    compute: Compute
    threads: int = field(default_factory=torch.get_num_threads)
    modules: tuple[str, ...] = field(default_factory=loaded_modules)

    def __call__(self, *cells: Cell) -> int:
        torch.set_num_threads(self.threads)
        for name in self.modules:
            load_module(name, "--import")
        return self.store.complete(cells, self.compute)

    def checkpoint(self, *cells: Cell) -> Any:
        """Return the job that resumes; its files are in the store."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *cells)


@contextlib.contextmanager
def _helpers(count: int, worker: _Worker, cells: Sequence[Cell]) -> Iterator[None]:
    """Start processes that compute cells as long as this one does."""
    context = multiprocessing.get_context("spawn")
    helpers = [
        context.Process(target=_help, args=(_device(number), worker, cells))
        for number in range(1, 1 + min(count, len(worker.store.missing(cells)) - 1))
    ]
    try:
        for helper in helpers:
            helper.start()
    except OSError:
        raise
    except Exception as error:  # pickle has many for what it cannot send
        raise UsageError(
            "with several jobs, other processes must find your functions by name, got "
            f"{describe_failure(error)}; define them at the top level of a module, or use jobs=1"
        ) from error
    try:
        yield
    finally:
        for helper in helpers:
            helper.terminate()  # a run in training stops at a checkpoint
        for helper in helpers:
            helper.join()


def _device(number: int) -> str | None:
    """Return the GPU of a process, if there are several: each takes its turn."""
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return visible.split(",")[number % count] if count > 1 else None


def _help(device: str | None, worker: _Worker, cells: Sequence[Cell]) -> None:
    """Compute cells; one that fails is left to the parent process, which reports it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    with contextlib.suppress(Exception, KeyboardInterrupt):
        worker(*cells)


def _end_with_parent() -> None:
    """Stop this process, as a signal would, when the one that started it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _submit(cluster: str, worker: _Worker, cells: Sequence[Cell], on_cell: OnCell) -> int:
    """Compute every missing cell in a job of its own, in one job array, and wait for all."""
    store = worker.store
    missing = store.missing(cells)
    if not missing:
        return 0
    try:
        import submitit
    except ImportError as error:
        raise UsageError("--jobs slurm needs submitit: pip install 'ranp[cluster]'") from error
    executor = submitit.AutoExecutor(folder=store.directory.parent / "jobs", cluster=cluster)
    executor.update_parameters(name="ranp", timeout_min=_MOST_MINUTES)
    jobs = executor.map_array(worker, missing)
    computed, failed = 0, []
    complete = len(cells) - len(missing)
    for done, (job, cell) in enumerate(zip(jobs, missing, strict=True), complete):
        on_cell(cell, done, len(cells))
        try:
            computed += job.result()
        except submitit.core.utils.UncompletedJobError as error:
            trace = str(error).partition("You can check full logs")[0]
            last = [line for line in trace.splitlines() if line.strip("- ")][-1]
            failed.append(f"job {job.job_id} failed: {last}; its log is {job.paths.stderr}")
    if failed:
        raise RanpError(f"{failed[0]} ({len(failed)} of {len(jobs)} jobs failed)")
    while store.missing(cells):  # another process holds the rest
        time.sleep(_POLL_SECONDS)
    return computed
