"""Benchmarks are run by hand and take long: here they are only held to what they import."""

from __future__ import annotations

from pathlib import Path

from tests.fresh import run_fresh

ROOT = Path(__file__).parents[1]


def test_all_benchmarks_can_be_imported():
    names = [path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__main__"]
    assert len(names) > 5
    imports = "".join(f"import benchmarks.{name}\n" for name in names)
    done = run_fresh(imports, cwd=ROOT)
    assert done.returncode == 0, done.stderr
