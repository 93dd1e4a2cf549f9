"""Predicted against measured peak memory of a training step.

Run by `python -m benchmarks.resources`; takes up to three minutes. Each network trains for one step
of plain SGD at batch 1 in a process of its own, at an input size that a CPU can afford. Measured is
the peak resident memory over what the process held before the model was built.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SIZES = {
    "unet3d-shapenet": (1, 1, 48, 48, 48),
    "unet3d-23-shapenet": (1, 1, 64, 32, 32),
    "unet3d-brats": (1, 4, 64, 64, 64),
    "mobilenetv2-ucf101": (1, 3, 16, 112, 112),
    "i3d-ucf101": (1, 3, 16, 224, 224),
}
_MIB = 2**20


def measure(name: str, shape: tuple[int, ...]) -> int:
    """Peak bytes of a training step over the bytes of an idle process."""
    command = [sys.executable, "-m", "benchmarks.resources", name, *map(str, shape)]
    # Freed memory goes back to the system at once, as it does with blocks of realistic sizes.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)


def _step(name: str, shape: tuple[int, ...]) -> None:
    """Trains one step and prints the peak; runs in a process of its own."""
    import torch

    from ranp.models import registry

    torch.set_num_threads(1)

    def train(model: torch.nn.Module, shape: tuple[int, ...]) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(shape)).mean().backward()
        optimizer.step()

    train(torch.nn.Conv3d(1, 1, 3, padding=1), (1, 1, 4, 4, 4))  # libraries load beforehand
    idle = resident("VmRSS")
    train(registry.build(name).train(), shape)
    print(resident("VmHWM") - idle)


def resident(field: str) -> int:
    """Resident bytes of this process: `VmRSS` now, `VmHWM` at the peak.

    Not `getrusage`: a process starts with the peak of the one that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def run(sizes: dict[str, tuple[int, ...]] = SIZES) -> None:
    """Prints predicted and measured peaks of the networks of the paper."""
    from ranp.models import registry
    from ranp.resources import predict_training_memory

    print("Peak memory of a training step, batch 1, SGD (MiB)")
    print(f"{'network':<20} {'input':<16} {'predicted':>9} {'measured':>9} {'error':>7}")
    for name, shape in sizes.items():
        predicted = predict_training_memory(registry.build(name), shape, optimizer="sgd").peak
        measured = measure(name, shape)
        size = "x".join(map(str, shape[1:]))
        print(
            f"{name:<20} {size:<16} {predicted / _MIB:9.0f} {measured / _MIB:9.0f} "
            f"{predicted / measured - 1:+7.1%}"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _step(sys.argv[1], tuple(map(int, sys.argv[2:])))
    else:
        run()
