"""Planning by memory, in the manner of nnU-Net: patch, batch and sparsity for the GPU at hand.

nnU-Net shrinks the patch until a training step fits. Here the network can shrink too: for every
patch, from the largest, the smallest sparsity is taken at which the predicted step fits. All by
prediction on fake tensors, so it runs anywhere, without a GPU and without the memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import ranp
from ranp.models import UNet3D


@dataclass(frozen=True)
class Choice:
    """What to train with."""

    patch: int
    batch: int
    plan: ranp.Plan
    predicted_gib: float


def predicted_gib(model: nn.Module, plan: ranp.Plan, batch: int, patch: int) -> float:
    """Predicted peak of a training step of the slim network on a GPU, in GiB."""
    shape = (batch, 1, patch, patch, patch)
    slim = plan.apply(model).to("meta")  # stands for the GPU: shapes without memory
    memory = ranp.predict_training_memory(slim, shape, optimizer="adam")
    return memory.peak / 2**30


def choose(
    model: nn.Module,
    scores: ranp.Scores,
    budget_gib: float,
    *,
    patches: tuple[int, ...],
    sparsities: tuple[float, ...],
    batch: int = 2,
) -> Choice | None:
    """The largest patch that fits, with the least pruning that makes it fit; None if none does."""
    for patch in sorted(patches, reverse=True):
        graph = ranp.trace(model, (1, 1, patch, patch, patch))
        for sparsity in sorted(sparsities):
            plan = ranp.plan(model, scores, sparsity=sparsity, graph=graph)
            gib = predicted_gib(model, plan, batch, patch)
            if gib <= budget_gib:
                return Choice(patch, batch, plan, gib)
    return None


def main() -> None:
    model = UNet3D(in_channels=1, classes=3, levels=2, base_width=32)
    batches = [(torch.rand(1, 1, 16, 16, 16), torch.randint(0, 3, (1, 16, 16, 16)))]
    scores = ranp.score(model, batches, nn.functional.cross_entropy)  # once, at a small size
    for budget in (16.0, 6.0):
        choice = choose(model, scores, budget, patches=(96, 128, 160), sparsities=(0.0, 0.3, 0.6))
        if choice is None:
            print(f"{budget:4.0f} GiB: nothing fits")
        else:
            print(
                f"{budget:4.0f} GiB: patch {choice.patch}, batch {choice.batch}, "
                f"sparsity {choice.plan.settings['sparsity']}, "
                f"predicted {choice.predicted_gib:.1f} GiB"
            )


if __name__ == "__main__":
    main()
