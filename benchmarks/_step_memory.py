"""Peak memory of training steps, measured in a process of its own.

    python -m benchmarks._step_memory NETWORK SIZE BATCH OPTIMIZER [PLAN]

The figure is the growth of the resident set over what the process has before the network is
built; every large tensor is a mapping of its own (MALLOC_MMAP_THRESHOLD_), so that what is freed
is gone. Not only live tensors are in it but also the workspaces of the convolution kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 2


@dataclass(frozen=True)
class Measured:
    """Bytes at the peak, and CPU seconds of the second step."""

    peak: int
    seconds: float


def loss_of(output: Tensor) -> Tensor:
    """Cross-entropy against labels of zeros: as much memory as any labels take."""
    target = torch.zeros(output.shape[0], *output.shape[2:], dtype=torch.int64)
    return F.cross_entropy(output, target)


def build(network: str, plan: str | None = None) -> nn.Module:
    """A network of the registry, or `hippocampus`, the recipe's; slim by a plan, if given."""
    from ranp.models import registry
    from ranp.slimming import Plan
    from ranp.training.config import load_config
    from ranp.training.networks import build_network

    if network == "hippocampus":
        model = build_network(load_config("hippocampus-unet3d").network)
    else:
        model = registry.build(network)
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
    warm = nn.Conv3d(1, 2, 3)  # loads the kernels' libraries, so that they do not count
    warm(torch.randn(1, 1, 8, 8, 8)).sum().backward()
    make_optimizer(request["optimizer"], warm).step()
    build(request["network"], request["plan"])  # imports, tracing: not the step's either
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")

    model = build_plain(request)
    optimizer = make_optimizer(request["optimizer"], model)
    x = torch.randn(*request["shape"])
    seconds = 0.0
    for _ in range(STEPS):
        began = time.process_time()
        loss_of(model(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.process_time() - began
    return Measured(resident("VmHWM") - before, seconds)


def build_plain(request: dict[str, Any]) -> nn.Module:
    return build(request["network"], request["plan"]).train()


if __name__ == "__main__":
    result = _measure_here(json.loads(sys.argv[1]))
    print(json.dumps({"peak": result.peak, "seconds": result.seconds}))
