"""Trains on as many processes as asked for, and writes the losses of every step.

python -m tests.training.two_processes PROCESSES DATA OUT LOSSES NORM
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ranp.training.config import Config, load_config
from ranp.training.job import Job
from ranp.training.listeners import Listener, Step
from ranp.training.run import train
from tests.training.conftest import TINY
from tests.training.networks import Plain


class Losses(Listener):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, step: Step) -> None:
        self.losses.append(step.loss)


def make_config(norm: bool) -> Config:
    options = TINY["network.options"] if norm else {}
    changes = {**TINY, "network.options": options, "epochs": 1, "batch": 4}
    return load_config("hippocampus-unet3d", smoke=True, changes=changes)


def main() -> None:
    processes, data, out, losses, norm = sys.argv[1:]
    listener = Losses()
    config = make_config(norm == "norm")
    record = train(
        Job(config, Path(out), Path(data), factory=None if norm == "norm" else Plain),
        devices=int(processes),
        listener=listener,
    )
    if listener.losses:  # the first process
        content = {"losses": listener.losses, "metrics": record["metrics"]}
        Path(losses).write_text(json.dumps(content))


if __name__ == "__main__":
    main()
