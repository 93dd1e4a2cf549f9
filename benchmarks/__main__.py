"""`make bench`: speed and memory, as ratios measured side by side in one run.

python -m benchmarks            all of them
python -m benchmarks slimming   some of them
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from pathlib import Path


def main() -> None:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler announces itself
    known = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]))
    known.remove("__main__")
    wanted = sys.argv[1:] or [name for name in known if not name.startswith("_")]
    for name in wanted:
        if name not in known:
            sys.exit(f"no benchmark is called '{name}'; there are {', '.join(known)}")
    for name in wanted:
        load = os.getloadavg()[0]
        print(f"\n=== {name} (load of the machine: {load:.1f} on {os.cpu_count()} cores) ===")
        importlib.import_module(f"benchmarks.{name}").run()


main()
