"""Cells of several processes are those of one, whoever computes them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from ranp.errors import RanpError, UsageError
from ranp.experiments.cells import TrainingCells
from ranp.experiments.jobs import Jobs, complete_cells, parse_jobs
from ranp.experiments.recipe_runs import RecipeRuns
from ranp.resources.budgets import Budget
from ranp.trials.store import Store
from tests.fresh import FORKS

CELLS = [{"number": number} for number in range(6)]


def square(cell, place):
    with (place / "computed-by.txt").open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(0.3)
    return {"square": cell["number"] ** 2}


def fail_on_three(cell, place):
    if cell["number"] == 3:
        raise UsageError("three is too many")
    return square(cell, place)


@pytest.mark.parametrize(
    ("text", "jobs"), [("1", 1), ("16", 16), ("slurm", "slurm"), ("local", "local")]
)
def test_jobs_are_read(text, jobs):
    assert parse_jobs(text) == jobs


@pytest.mark.parametrize("text", ["0", "-2", "many", "", "1.5"])
def test_jobs_that_make_no_sense(text):
    with pytest.raises(UsageError, match="must be a positive number or slurm"):
        parse_jobs(text)


def test_what_is_complete_needs_no_cluster(tmp_path):
    store = Store(tmp_path)
    store.complete(CELLS[:1], lambda cell, place: {})
    assert complete_cells(store, CELLS[:1], square, jobs="slurm") == 0


def computed_by(store: Store) -> list[list[str]]:
    return [(store.place(c) / "computed-by.txt").read_text().split() for c in CELLS]


@pytest.mark.usefixtures("forks")
def test_processes_of_one_machine_share_the_cells_out(tmp_path):
    store = Store(tmp_path)
    told = []
    # A helper may come late, and find no cell left.
    ours = complete_cells(store, CELLS, square, lambda cell, *n: told.append(n), jobs=3)
    assert [store.result(cell) for cell in CELLS] == [{"square": n**2} for n in range(6)]
    assert all(len(processes) == 1 for processes in computed_by(store))
    assert ours == len(told) == sum([str(os.getpid())] == each for each in computed_by(store))
    assert complete_cells(store, CELLS, square, jobs=3) == 0


@pytest.mark.usefixtures("forks")
def test_what_fails_in_another_process_is_told_by_this_one(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(UsageError, match="three is too many"):
        complete_cells(store, CELLS, fail_on_three, jobs=2)
    assert store.result(CELLS[3]) is None


def test_a_function_that_no_other_process_finds_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"must find your functions by name, got .*; define them"):
        complete_cells(Store(tmp_path), CELLS, lambda cell, place: {}, jobs=2)


def hang(cell, place):
    (place / "pid").write_text(str(os.getpid()))
    time.sleep(600)


def begin(directory: Path) -> None:
    complete_cells(Store(directory), CELLS, hang, jobs=2)


def test_processes_end_with_the_one_that_started_them(tmp_path):
    process = FORKS.Process(target=begin, args=(tmp_path,))
    process.start()
    while len(begun := [path.read_text() for path in tmp_path.glob("*/pid")]) < 2 or "" in begun:
        assert process.is_alive()
        time.sleep(0.02)
    (helper,) = {int(pid) for pid in begun} - {process.pid}
    process.kill()
    process.join(60)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{helper}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{helper}").exists()


@pytest.fixture
def local_executor(monkeypatch):
    pytest.importorskip("submitit")
    # Jobs are new interpreters: they import this module by its name.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *_paths()]))


def _paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def test_jobs_of_a_cluster_compute_a_cell_each(tmp_path, local_executor):
    store = Store(tmp_path / "cells")
    store.complete(CELLS[:4], square)
    told = []
    count = complete_cells(store, CELLS, square, lambda cell, *n: told.append(n), jobs="local")
    assert count == 2 and told == [(4, 6), (5, 6)]
    assert [store.result(cell) for cell in CELLS] == [{"square": n**2} for n in range(6)]
    first, second = computed_by(store)[4:]
    assert first != second and str(os.getpid()) not in (*first, *second)


@pytest.mark.slow
def test_a_job_that_fails_is_named_with_its_log(tmp_path, local_executor):
    store = Store(tmp_path / "cells")
    with pytest.raises(RanpError, match=r"three is too many.*its log is .*1 of 6 jobs") as caught:
        complete_cells(store, CELLS, fail_on_three, jobs="local")
    assert store.missing(CELLS) == [CELLS[3]]
    log = str(caught.value).partition("its log is ")[2].partition(" (")[0]
    assert "three is too many" in Path(log).read_text()


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("jobs", [2, pytest.param("local", marks=pytest.mark.slow)])
def test_the_same_cells_bit_for_bit(tiny, crops, tmp_path, jobs, request):
    if jobs == "local":
        request.getfixturevalue("local_executor")
    budget = {"params=900": Budget("params", 900)}
    config = tiny(epochs=1, pruning__floor=1)
    design = RecipeRuns(config, ("full", "ranp-f"), budget, (0, 1))
    one, several = (
        outcomes(TrainingCells(Store(tmp_path / str(each) / "cells"), crops), design, each)
        for each in (1, jobs)
    )
    assert one == several


def outcomes(cells: TrainingCells, design: RecipeRuns, jobs: Jobs) -> list[tuple[dict, dict]]:
    """Results but for their times, and the bytes of weights and optimizer."""
    complete_cells(cells.store, design.cells(), cells, jobs=jobs)
    found = []
    for cell in design.cells():
        result = cells.store.result(cell)
        tensors = load_file(cells.store.place(cell) / "run" / "last.safetensors")
        bits = {name: values.tobytes() for name, values in tensors.items()}
        assert result["outcome"] == "trained" and bits
        found.append(({k: v for k, v in result.items() if "seconds" not in k}, bits))
    return found
