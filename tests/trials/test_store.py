from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from ranp.errors import IntegrityError
from ranp.trials.store import Store

CELLS = [{"method": method, "seed": seed} for method in ("ranp-f", "random") for seed in (0, 1)]


def square(cell, place):
    return {"value": len(cell["method"]) * 10 + cell["seed"]}


def test_results_are_those_computed_and_nothing_is_computed_twice(tmp_path):
    store = Store(tmp_path)
    assert store.missing(CELLS) == CELLS
    assert store.complete(CELLS[:2], square) == 2
    assert store.missing(CELLS) == CELLS[2:]
    told = []
    assert (
        store.complete(CELLS, square, lambda cell, done, of: told.append((cell["seed"], done, of)))
        == 2
    )
    assert told == [(0, 2, 4), (1, 3, 4)]
    assert [store.result(cell) for cell in CELLS] == [
        {"value": 60}, {"value": 61}, {"value": 60}, {"value": 61},
    ]  # fmt: skip
    assert store.complete(CELLS, square) == 0


def test_the_order_of_keys_does_not_matter_and_any_value_does(tmp_path):
    store = Store(tmp_path)
    assert store.place({"a": 1, "b": 2}) == store.place({"b": 2, "a": 1})
    assert store.place({"a": 1, "b": 2}) != store.place({"a": 1, "b": 3})


def test_a_cell_of_an_earlier_version_lacks_what_was_added_since(tmp_path):
    store = Store(tmp_path)
    before = {"method": "ranp-f", "seed": 1, "config": {"optimizer": {"lr": 0.1}}}
    now = {**before, "config": {"optimizer": {"lr": 0.1, "dampening": 0.0}}}
    other = {**before, "config": {"optimizer": {"lr": 0.1, "dampening": 0.9}}}
    store.complete([before], square)
    assert store.result(now) == {"value": 61}
    assert store.missing([now, other]) == [other]
    assert store.complete([now, other], square) == 1
    assert store.place(other) != store.place(now) == store.place(before)


def test_a_failed_cell_is_computed_again_and_keeps_its_files(tmp_path):
    store = Store(tmp_path)

    def failing(cell, place):
        (place / "half.txt").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.complete(CELLS[:1], failing)
    assert store.result(CELLS[0]) is None
    found = []
    store.complete(
        CELLS[:1], lambda cell, place: found.append((place / "half.txt").read_text()) or {}
    )
    assert found == ["half"]


def test_a_changed_record_is_refused(tmp_path):
    store = Store(tmp_path)
    store.complete(CELLS[:1], square)
    path = store.place(CELLS[0]) / "record.json"
    content = json.loads(path.read_text())
    content["result"]["value"] = 99
    path.write_text(json.dumps(content))
    with pytest.raises(IntegrityError, match="was changed"):
        store.result(CELLS[0])


def slow_square(cell, place):
    with (place / "computed-by.txt").open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(0.05)
    return square(cell, place)


def take_part(directory: Path) -> None:
    Store(directory).complete(CELLS, slow_square)


def test_processes_share_the_cells_out(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=take_part, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    store = Store(tmp_path)
    for cell in CELLS:
        assert store.result(cell) == square(cell, None)
        assert len((store.place(cell) / "computed-by.txt").read_text().split()) == 1


def require(directory: Path) -> None:
    assert Store(directory).require(CELLS[0], slow_square) == square(CELLS[0], None)


def test_what_is_required_is_computed_once_and_waited_for(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=require, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    computed = Store(tmp_path).place(CELLS[0]) / "computed-by.txt"
    assert len(computed.read_text().split()) == 1


def hang(directory: Path) -> None:
    def forever(cell, place):
        (place / "begun").touch()
        time.sleep(600)

    Store(directory).complete(CELLS[:1], forever)


def test_the_cell_of_a_killed_process_is_free_again(tmp_path):
    store = Store(tmp_path)
    process = multiprocessing.get_context("spawn").Process(target=hang, args=(tmp_path,))
    process.start()
    begun = store.place(CELLS[0]) / "begun"
    while not begun.exists():
        assert process.is_alive()
        time.sleep(0.02)
    assert store.complete(CELLS[:1], square) == 0  # somebody is at it
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    assert store.complete(CELLS[:1], square) == 1


@pytest.mark.parametrize("keeps", [False, True])
def test_a_cell_is_of_the_code_that_began_what_it_is_built_upon(tmp_path, keeps):
    def killed(cell, place):
        if keeps:
            (place / "half.txt").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path, code="old").complete(CELLS[:1], killed)
    store = Store(tmp_path, code="new")
    store.complete(CELLS[:1], square)
    assert store.is_outdated(CELLS[0]) == keeps
