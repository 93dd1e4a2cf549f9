"""Peak memory of a training step, measured in a process of its own.

The figure is how far the resident set grows during a step, and what rests between steps:
parameters, optimizer state and the batch. Every large tensor is a mapping of its own
(MALLOC_MMAP_THRESHOLD_), so that what is freed is gone. A step beforehand makes the optimizer's
state, loads libraries, and has oneDNN generate its kernels. Those stay, whatever the size of the
network: with a first step measured, the prediction for MobileNetV2 came out 13 % too small.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Measured:
    """Bytes at the peak, and CPU seconds of the step."""

    peak: int
    seconds: float


def loss_of(output: Tensor) -> Tensor:
    """Cross-entropy against labels of zeros: as much memory as any labels take."""
    target = torch.zeros(output.shape[0], *output.shape[2:], dtype=torch.int64)
    return F.cross_entropy(output, target)


def build(network: str, plan: str | None = None) -> nn.Module:
    """A network of the registry, or `hippocampus`, the recipe's; slim by a plan, if given."""
    from ranp import models
    from ranp.slimming import Plan
    from ranp.training.config import load_config
    from ranp.training.networks import build_network

    if network == "hippocampus":
        model = build_network(load_config("hippocampus-unet3d").network)
    else:
        model = models.build_network(network)
    return Plan.load(plan).apply(model) if plan else model


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizers that `ranp.predict_training_memory` knows."""
    if name in ("sgd", "momentum"):
        momentum = 0.9 if name == "momentum" else 0.0
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=momentum)
    return torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=name == "amsgrad")


def measure(
    network: str, shape: tuple[int, ...], optimizer: str, plan: Path | None = None
) -> Measured:
    """Measures training steps in a new process."""
    request = {
        "network": network,
        "shape": shape,
        "optimizer": optimizer,
        "plan": None if plan is None else str(plan),
    }
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_ARENA_MAX": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._step_memory", json.dumps(request)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return Measured(**json.loads(done.stdout))


def resident(field: str) -> int:
    """VmRSS or VmHWM (its peak) of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def _measure_here(request: dict[str, Any]) -> Measured:
    torch.set_num_threads(1)
    model = build(request["network"], request["plan"]).train()
    optimizer = make_optimizer(request["optimizer"], model)
    x = torch.randn(*request["shape"])

    def step() -> None:
        loss_of(model(x)).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    began = time.process_time()
    step()
    seconds = time.process_time() - began
    state = (t for s in optimizer.state.values() for t in s.values() if isinstance(t, Tensor))
    resting = sum(t.nbytes for t in (*model.parameters(), *model.buffers(), x, *state))
    return Measured(resident("VmHWM") - before + resting, seconds)


if __name__ == "__main__":
    print(json.dumps(asdict(_measure_here(json.loads(sys.argv[1])))))
