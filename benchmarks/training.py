"""A training step of full and slim networks side by side: memory predicted and measured, CPU time.

With the recipes' optimizers and the paper's sparsities; slim networks are made by RANP-f from two
synthetic samples. The prediction counts tensors; the measurement has workspaces of the
convolution kernels too. At batch 1 PyTorch sends thin convolutions to a kernel on the CPU that
takes far more of both memory and time: the rows with batch 1 and 2 of one network show it.
(`benchmarks.resources` has the prediction for plain SGD.)
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from torch.nn import functional as F

import ranp
from benchmarks._step_memory import build, measure
from ranp.datasets import synthetic_cases
from ranp.datasets.cases import Cases
from ranp.datasets.loader import Loader
from ranp.models import find_network
from ranp.resources import predict_training_memory
from ranp.resources.step_memory import zero_label_loss

CASES = (
    ("unet3d-shapenet", (2, 1, 32, 32, 32), "momentum"),
    ("unet3d-brats", (1, 4, 48, 48, 48), "amsgrad"),
    ("unet3d-brats", (2, 4, 48, 48, 48), "amsgrad"),
    ("mobilenetv2-ucf101", (2, 3, 16, 112, 112), "momentum"),
)


def samples_like(name: str, shape: tuple[int, ...]) -> Cases:
    """Two synthetic samples of a network's data set."""
    edge = shape[-1]
    if name == "unet3d-shapenet":
        return synthetic_cases("shapenet", size=edge, samples=2, seed=0)
    if name == "unet3d-brats":
        return synthetic_cases("brats", size=edge, samples=2, seed=0)
    return synthetic_cases(
        "ucf101", size=edge, samples=2, seed=0, frames=shape[2], classes=find_network(name).classes
    )


def run() -> None:
    """Prints two lines per network, and the ratios of slim to full."""
    print(f"{'network':19} {'input':15} {'':5} {'predicted':>9} {'measured':>9} {'CPU s/step':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for name, shape, optimizer in CASES:
            spec = find_network(name)
            plan = Path(folder) / f"{name}.json"
            ranp.prune(
                build(name),
                Loader(samples_like(name, shape), 1, training=True),
                lambda output, target: F.cross_entropy(output, target, ignore_index=255),
                sparsity=spec.sparsity,
                lam=spec.lam,
            ).plan.save(plan)
            _compare(name, shape, optimizer, plan)


def _compare(name: str, shape: tuple[int, ...], optimizer: str, plan: Path) -> None:
    size = "x".join(map(str, shape))
    steps = []
    for title, used in (("full", None), ("slim", plan)):
        network = build(name, None if used is None else str(used))
        predicted = predict_training_memory(
            network, shape, optimizer=optimizer, loss=zero_label_loss
        ).peak
        step = measure(name, shape, optimizer, used)
        steps.append(step)
        print(
            f"{name:19} {size:15} {title:5} {predicted / 2**20:5.0f} MiB "
            f"{step.peak / 2**20:5.0f} MiB {step.seconds:11.2f}"
            f"   prediction {100 * (predicted / step.peak - 1):+.1f} %",
            flush=True,
        )
    full, slim = steps
    print(f"{'':35} ratio {'':9} {slim.peak / full.peak:9.2f} {slim.seconds / full.seconds:11.2f}")


if __name__ == "__main__":
    run()
