"""Benchmarks are run by hand and take long: here they are only held to what they import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_all_benchmarks_can_be_imported():
    names = [path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__main__"]
    assert len(names) > 5
    imports = "".join(f"import benchmarks.{name}\n" for name in names)
    done = subprocess.run(
        [sys.executable, "-c", imports], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
