"""Prune a network that was trained before, keep the surviving weights, and train on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import ranp


def make_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv3d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv3d(16, 2, 1),
    )


def make_batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Which voxels are brighter than the mean of their neighbourhood?"""
    x = torch.randn(2, 1, 12, 12, 12, generator=generator)
    return x, (x > nn.functional.avg_pool3d(x, 3, 1, 1))[:, 0].long()


def train(model: nn.Module, steps: int, generator: torch.Generator) -> float:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        x, y = make_batch(generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = make_network()
    print(f"trained:            loss {train(model, 60, generator):.3f}")

    batches = [make_batch(generator) for _ in range(4)]
    result = ranp.prune(
        model,
        batches,
        nn.functional.cross_entropy,
        sparsity=0.5,
        weights="given",  # score the trained weights, not fresh ones
        init="keep",  # and take them over into the slim network
    )
    x, y = make_batch(generator)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(result.model(x), y)
    print(f"pruned by half:     loss {loss.item():.3f}")
    print(f"trained 20 more:    loss {train(result.model, 20, generator):.3f}")


if __name__ == "__main__":
    main()
