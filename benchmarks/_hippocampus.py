"""Full network and RANP-f at 80 % on the real hippocampus data, three seeds each, as a table.

    python -m benchmarks._hippocampus --data DIR --out DIR --table docs/results-hippocampus.md

About 30 minutes on one idle CPU core. Stopped, the same command goes on; done, it writes the table
from the records in a minute.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks._hippocampus_table import table
from benchmarks._results import fill
from ranp.training.config import load_config
from ranp.training.job import Job
from ranp.training.listeners import Listener, epoch_line
from ranp.training.run import train

RECIPE = "hippocampus-unet3d"
SEEDS = (0, 1, 2)
METHODS = {"full": None, "RANP-f, 80 %": "ranp-f"}


class Echo(Listener):
    """Prints a line per epoch."""

    def __init__(self, name: str, epochs: int) -> None:
        self.name, self.epochs = name, epochs

    def on_epoch_end(self, line: Any) -> None:
        print(self.name, epoch_line(line, self.epochs), flush=True)


def run_one(data: Path, out: Path, method: str | None, seed: int) -> dict[str, Any]:
    """Trains one network, or reads its record; also notes the CPU time of an unbroken run."""
    changes = {"pruning.method": method, "pruning.sparsity": 0.8, "seed": seed}
    config = load_config(RECIPE, changes=changes)
    directory = out / f"{method or 'full'}-{seed}"
    timing = directory / "timing.json"
    unbroken = not (directory / "last.safetensors").exists()
    began = time.process_time()
    listener = Echo(directory.name, config.epochs)
    record = train(Job(config, directory, data=data), resume=True, listener=listener)
    if unbroken:
        timing.write_text(json.dumps({"cpu_seconds": time.process_time() - began}))
    cpu = json.loads(timing.read_text())["cpu_seconds"] if timing.exists() else None
    return {**record, "cpu_seconds": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = {
        (name, seed): run_one(args.data, args.out, method, seed)
        for seed in SEEDS
        for name, method in METHODS.items()
    }
    fill(args.table, {"runs": table(records, args.out)})


if __name__ == "__main__":
    main()
