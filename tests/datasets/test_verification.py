from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ranp.datasets import find_dataset, open_cases, verify
from ranp.datasets.verification import (
    Checked,
    Inventory,
    Problem,
    abbreviate,
    check_all,
    checks,
    summarise,
)
from ranp.errors import IntegrityError, UsageError


def check_number(number: int) -> Checked:
    if number in (3, 17):
        os._exit(11)  # as a decoder that runs into a segmentation fault
    return Checked(str(number), counts=(("parity", "odd" if number % 2 else "even"),))


def check_with_bug(number: int) -> Checked:
    return Checked(str(1 // number))


@pytest.mark.usefixtures("forks")  # a pool for every one that dies
@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_whatever_dies(workers):
    ticks = []
    results = check_all(range(20), check_number, workers=workers, progress=lambda: ticks.append(1))
    assert [r.case for r in results] == [str(n) for n in range(20)]
    assert len(ticks) == 20
    assert [r.case for r in results if r.problems] == ["3", "17"]
    assert "crashes" in results[3].problems[0].reason


def test_row_33_whatever_a_check_raises_is_the_cases_problem():
    good, bad = check_all([1, 0], check_with_bug, workers=1)
    assert not good.problems
    assert "cannot be read: ZeroDivisionError" in bad.problems[0].reason


def test_no_cases():
    assert check_all([], check_number) == []


def test_row_33_every_error_becomes_a_problem():
    @checks(path=lambda case: Path("f"))
    def damaged(case):
        raise IntegrityError("bad bytes")

    @checks(path=lambda case: Path("f"))
    def bug(case):
        raise KeyError("x")

    case = SimpleNamespace(id="a")
    assert damaged(case) == Checked("a", problems=(Problem("f", "bad bytes"),))
    [problem] = bug(case).problems
    assert problem.path == "f"
    assert problem.reason.startswith("cannot be read: KeyError: 'x'")


def test_summary_counts_and_shortens_paths():
    checked = [
        Checked("a", counts=(("split", "train"), ("class", "x"))),
        Checked("b", counts=(("split", "train"),)),
        Checked("c", problems=(Problem("/d/c.nii", "'/d/c.nii' is damaged"),)),
    ]
    inventory = Inventory([1, 2, 3], [Problem("/d/z", "foreign")], ["a note"])
    report = summarise("brats", Path("/d"), inventory, checked)
    assert report.cases == 3
    assert report.counts == {"split": {"train": 2}, "class": {"x": 1}}
    assert report.problems == (Problem("c.nii", "'c.nii' is damaged"), Problem("z", "foreign"))
    assert report.notes == ("a note",)
    assert not report.ok
    assert report.to_json()["problems"][0] == {"path": "c.nii", "reason": "'c.nii' is damaged"}


def test_some_names():
    assert abbreviate(["a"]) == "1 (a)"
    assert abbreviate(list("abcde")) == "5 (a, b, c, ...)"


def test_unknown_kinds_and_directories(tmp_path):
    with pytest.raises(UsageError, match="Did you mean 'shapenet'"):
        find_dataset("shape-net")
    with pytest.raises(UsageError, match="does not exist"):
        verify("brats", tmp_path / "no")
    with pytest.raises(UsageError, match="does not exist"):
        open_cases("brats", tmp_path / "no", "train")
    with pytest.raises(UsageError, match="'brats' has no cache"):
        open_cases("brats", tmp_path, "train", cache=tmp_path)


def test_registry_readers_and_writers_need_no_torch():
    """Commands that only verify or write start fast, and so do the verifier's processes."""
    script = "import sys, ranp.datasets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
