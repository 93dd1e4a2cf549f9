"""Cells computed by several processes: of this machine, or jobs of a cluster's scheduler.

They share a store, which hands every cell to one process only and loses nothing if a process is
killed. Any other engine can do the same: start the command once per worker on a common file system.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast, get_args

from ranp.errors import RanpError, UsageError
from ranp.trials.processes import Worker, helpers
from ranp.trials.store import Cell, Compute, OnCell, Store, ignore_cell

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


def check_jobs(jobs: Jobs) -> None:
    """Refuse what is neither a number of processes nor a cluster's executor."""
    is_count = isinstance(jobs, int) and not isinstance(jobs, bool) and jobs >= 1
    if not is_count and jobs not in get_args(Cluster):
        raise UsageError(f"jobs must be a positive number or slurm, got {jobs!r}")


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
    job = _Job(partial(_complete, store, compute))
    if isinstance(jobs, str):
        return _submit(store, jobs, job, cells, on_cell)
    with helpers(min(jobs, len(store.missing(cells))) - 1, job, *cells):
        return store.complete(cells, compute, on_cell, wait=True)


class _Job(Worker):
    """Computes cells; as a job that is preempted or timed out, it is requeued and resumes."""

    def checkpoint(self, *cells: Cell) -> Any:
        """Return the job that resumes; its files are in the store."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *cells)


def _complete(store: Store, compute: Compute, *cells: Cell) -> int:
    return store.complete(cells, compute)


def _submit(
    store: Store, cluster: str, worker: Worker, cells: Sequence[Cell], on_cell: OnCell
) -> int:
    """Compute every missing cell in a job of its own, in one job array, and wait for all."""
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
