"""The page that lists what is promised names tests that exist, for every row."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "faults.md"


def test_every_row_names_tests_that_exist():
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert [int(row) for row, _ in rows] == list(range(1, 45))
    for row, tests in rows:
        named = re.findall(r"`(tests/\S+?\.py)::(test_\w+)`", tests)
        assert named, row
        for path, name in named:
            text = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"row {row}: {name}"


def test_tests_that_are_named_by_row_are_on_the_page():
    page = PAGE.read_text()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for row in re.findall(r"^def test_row_(\d+)_", path.read_text("utf-8"), re.MULTILINE):
            (line,) = re.findall(rf"^\| {row} \|.*$", page, re.MULTILINE)
            assert path.relative_to(ROOT).as_posix() in line, f"row {row}: {path}"
