"""Predicted against measured peak memory of a training step.

The networks of the paper, full and slim (RANP-f at the paper's sparsity, scored on two synthetic
samples), at two sizes each, with SGD with momentum and with Adam, cross-entropy, on one thread,
each in a process of its own (see `_step_memory`). Takes about ten minutes.
"""

from __future__ import annotations

import tempfile
import time
from itertools import product
from pathlib import Path
from unittest import mock

import torch
from torch.nn import functional as F

import ranp
from benchmarks._step_memory import (
    SEGMENTING,
    build,
    build_segmenting,
    dice_ce,
    measure,
    measure_segmenting,
)
from ranp.datasets import synthetic_cases
from ranp.datasets.cases import Cases
from ranp.datasets.loader import Loader
from ranp.models import find_network
from ranp.resources import predict_training_memory
from ranp.resources.step_memory import zero_label_loss
from ranp.resources.step_model import NotAProduct, StepModel

SIZES = {
    "unet3d-shapenet": ((2, 1, 16, 16, 16), (1, 1, 32, 32, 32)),
    "unet3d-23-shapenet": ((2, 1, 32, 32, 32), (1, 1, 64, 32, 32)),
    "unet3d-brats": ((2, 4, 32, 32, 32), (1, 4, 48, 48, 48)),
    "mobilenetv2-ucf101": ((1, 3, 16, 112, 112), (2, 3, 16, 112, 112)),
    "i3d-ucf101": ((1, 3, 16, 224, 224), (1, 3, 16, 256, 256)),
}
OPTIMIZERS = ("momentum", "adam")
BUDGETS = {
    "unet3d-brats": ((2, 4, 32, 32, 32), 120 * 2**20),
    "mobilenetv2-ucf101": ((2, 3, 16, 112, 112), 300 * 2**20),
}
_MIB = 2**20


def samples_like(name: str, shape: tuple[int, ...]) -> Cases:
    """Two synthetic samples of a network's data set."""
    edge = shape[-1]
    if find_network(name).dataset == "shapenet":
        return synthetic_cases("shapenet", size=edge, samples=2, seed=0)
    if find_network(name).dataset == "brats":
        return synthetic_cases("brats", size=edge, samples=2, seed=0)
    return synthetic_cases(
        "ucf101", size=edge, samples=2, seed=0, frames=shape[2], classes=find_network(name).classes
    )


def make_plan(name: str, shape: tuple[int, ...], path: Path) -> None:
    """Prunes a network as the paper does, and stores the plan."""
    spec = find_network(name)
    ranp.prune(
        build(name),
        Loader(samples_like(name, shape), shape[0], training=True),
        lambda output, target: F.cross_entropy(output, target, ignore_index=255),
        sparsity=spec.sparsity,
        lam=spec.lam,
    ).plan.save(path)


def run() -> None:
    """Prints a line for every network, size and optimizer, and the largest error."""
    torch.set_num_threads(1)  # which kernels run, and what they take, depends on it
    print("Peak memory of a training step (MiB)")
    print(
        f"{'network':18} {'':4} {'input':15} {'optimizer':9} "
        f"{'predicted':>9} {'measured':>9} {'error':>7}"
    )
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for name, shapes in SIZES.items():
            plan = Path(folder) / f"{name}.json"
            make_plan(name, shapes[0], plan)
            for kind, used in (("full", None), ("slim", plan)):
                network = build(name, None if used is None else str(used))
                for shape, optimizer in product(shapes, OPTIMIZERS):
                    predicted = predict_training_memory(
                        network, shape, optimizer=optimizer, loss=zero_label_loss
                    ).peak
                    measured = measure(name, shape, optimizer, used).peak
                    errors.append(predicted / measured - 1)
                    print(
                        f"{name:18} {kind:4} {'x'.join(map(str, shape)):15} {optimizer:9} "
                        f"{predicted / _MIB:9.1f} {measured / _MIB:9.1f} {errors[-1]:+7.1%}",
                        flush=True,
                    )
    print(f"Largest error: {max(errors, key=abs):+.1%}")
    compare_losses()
    compare_searches()
    print("\nNetworks fitted to a budget (MiB)")
    print(
        f"{'network':18} {'input':15} {'sparsity':>8} "
        f"{'budget':>7} {'predicted':>9} {'measured':>9}"
    )
    for name, (shape, budget) in BUDGETS.items():
        sparsity, predicted, measured = measure_fitted(name, shape, budget)
        print(
            f"{name:18} {'x'.join(map(str, shape)):15} {sparsity:8.4f} {budget / _MIB:7.0f} "
            f"{predicted / _MIB:9.1f} {measured / _MIB:9.1f} ({measured / budget:.1%})",
            flush=True,
        )


def compare_losses() -> None:
    """Prints predicted and measured peaks with MONAI's DiceCELoss, which counts too."""
    torch.set_num_threads(1)
    print("\nPeak memory with MONAI's DiceCELoss and Adam (MiB)")
    print(
        f"{'network':10} {'classes':>7} {'input':15} {'predicted':>9} {'measured':>9} {'error':>7}"
    )
    for name, classes, edge in product(SEGMENTING, (3, 14), (48, 64)):
        shape = (1, 1, edge, edge, edge)
        network = build_segmenting(name, classes)
        predicted = predict_training_memory(network, shape, loss=dice_ce).peak
        measured = measure_segmenting(name, classes, shape).peak
        print(
            f"{name:10} {classes:7} {'x'.join(map(str, shape)):15} "
            f"{predicted / _MIB:9.1f} {measured / _MIB:9.1f} {predicted / measured - 1:+7.1%}",
            flush=True,
        )


def compare_searches(name: str = "DynUNet", edge: int = 128) -> None:
    """Prints how long `fit` takes if peaks are computed, and if every trial is simulated."""
    x, y = torch.randn(1, 1, 32, 32, 32), torch.zeros(1, 1, 32, 32, 32)

    def seconds() -> float:
        began = time.process_time()
        ranp.fit(
            build_segmenting(name, 3),
            [(x, y)],
            lambda output, target: dice_ce(output),
            memory="60%",
            batch=2,
            input=(1, edge, edge, edge),
            device="cuda",
            method="ranp-f",
        )
        return time.process_time() - began

    computed = seconds()
    with mock.patch.object(StepModel, "of", side_effect=NotAProduct):
        simulated = seconds()
    print(f"\nfit --memory, {name} at {edge}^3 (CPU seconds)")
    print(f"simulated {simulated:.1f}, computed {computed:.1f}: {computed / simulated:.2f} of it")


def measure_fitted(name: str, shape: tuple[int, ...], budget: int) -> tuple[float, float, int]:
    """Sparsity, predicted and measured peak of a network that was fitted to a budget."""
    batch, *sample = shape
    result = ranp.fit(
        build(name),
        Loader(samples_like(name, shape), 1, training=True),
        lambda output, target: F.cross_entropy(output, target, ignore_index=255),
        memory=budget,
        batch=batch,
        input=tuple(sample),
        device="cpu",
        lam=find_network(name).lam,
    )
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        result.plan.save(plan)
        measured = measure(name, shape, "adam", plan).peak
    return result.sparsity, result.figures["slim"]["memory"], measured


if __name__ == "__main__":
    run()
