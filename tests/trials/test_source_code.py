"""Cells know the code that computed them."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import ranp
from ranp.experiments.cells import TrainingCells
from ranp.experiments.reproduce.study import Study
from ranp.trials.source_code import code_fingerprint
from ranp.trials.store import Store

CELL = {"number": 3}
MODULE = '''
"""A network."""
import json

from helper import width


def build():
    """Build it."""
    return width  # its width
'''


def fingerprint(directory: Path, build: str = MODULE, helper: str = "width = 4\n") -> str:
    """Of a module of the user's, in a process of its own: what is imported stays imported."""
    (directory / "network.py").write_text(build)
    (directory / "helper.py").write_text(helper)
    code = (
        "from network import build\n"
        "from ranp.trials.source_code import code_fingerprint\n"
        "print(code_fingerprint(build))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout


def test_what_is_said_of_code_does_not_count_and_what_it_does(tmp_path):
    before = fingerprint(tmp_path)
    for same in (
        MODULE.replace("Build it.", "Build a network.\n\n    At length."),
        MODULE.replace("\n\n\ndef", "\n\n# A comment.\ndef"),
    ):
        assert fingerprint(tmp_path, same) == before
    changes = [
        fingerprint(tmp_path, MODULE.replace("return width", "return 2 * width")),
        fingerprint(tmp_path, helper="width = 8\n"),
    ]
    assert len({before, *changes}) == 3
    assert fingerprint(tmp_path) == before


def test_tables_and_comparisons_have_code_of_their_own():
    assert code_fingerprint(TrainingCells) == code_fingerprint(TrainingCells)
    assert len({code_fingerprint(TrainingCells), code_fingerprint(Study)}) == 2


def compute(cell, place):
    kept = place / "kept.txt"
    kept.write_text((kept.read_text() if kept.exists() else "") + "x")
    return {"kept": kept.read_text()}


def test_cells_of_other_code_are_told_and_computed_again_if_asked_for(tmp_path):
    assert Store(tmp_path, code="first").complete([CELL], compute) == 1
    same, other = Store(tmp_path, code="first"), Store(tmp_path, code="second")
    assert not same.is_outdated(CELL) and other.is_outdated(CELL)
    assert other.complete([CELL], compute) == 0
    again = Store(tmp_path, code="second", recompute=True)
    assert again.missing([CELL]) == [CELL]
    assert again.complete([CELL], compute) == 1
    assert again.result(CELL) == {"kept": "x"}  # nothing of the old one was built upon
    assert not other.is_outdated(CELL) and same.is_outdated(CELL)
    assert again.complete([CELL], compute) == 0


def interrupted(cell, place):
    compute(cell, place)
    raise KeyboardInterrupt


def test_a_cell_that_other_code_began_is_one_of_that_code(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path, code="first").complete([CELL], interrupted)
    store = Store(tmp_path, code="second")
    assert store.complete([CELL], compute) == 1
    assert store.result(CELL) == {"kept": "xx"}
    assert store.is_outdated(CELL)
    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path, code="second", recompute=True).complete([CELL], interrupted)
    again = Store(tmp_path, code="second", recompute=True)
    assert again.complete([CELL], compute) == 1
    assert again.result(CELL) == {"kept": "xx"}  # goes on from what the same code began
    assert not again.is_outdated(CELL)


def test_cells_from_before_there_was_a_fingerprint_are_of_other_code(tmp_path):
    Store(tmp_path).complete([CELL], compute)
    assert Store(tmp_path, code="any").is_outdated(CELL)
    assert not Store(tmp_path).is_outdated(CELL)


def test_the_code_of_a_decorated_function_is_that_of_its_module():
    def rates(model, seed, report, rate, steps):
        report(rate)

    plain = code_fingerprint(rates)
    decorated = ranp.reporting(partial(rates, rate=0.1))
    assert code_fingerprint(decorated) == plain
    assert code_fingerprint(partial(decorated, steps=3)) == plain
