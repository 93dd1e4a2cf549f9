"""A MONAI DynUNet on the hippocampus: thinned by hand, RANP-f and race at the same FLOPs.

    python -m benchmarks._dynunet 3% --out out/dynunet

Trains where it is missing; docs/results-allocations.md has what came out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import ranp
from benchmarks._proof_tasks import TASKS, train_hippocampus
from benchmarks.proof import CANDIDATES, COMPARED

STEPS, CHECK_INS, SEEDS = 400, 8, 3


def build() -> nn.Module:
    """Return a DynUNet with four levels of 32 to 256 features."""
    from monai.networks.nets import DynUNet

    return DynUNet(
        3, 1, 3, [3] * 4, [1, 2, 2, 2], [2, 2, 2], filters=[32, 64, 128, 256], norm_name="instance"
    )


def train(model: nn.Module, seed: int) -> Iterator[dict[str, float]]:
    """Train as the proof does, a little shorter."""
    return train_hippocampus(model, seed, STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flops", help="Share of the full network's FLOPs, such as 3%%.")
    parser.add_argument("--out", type=Path, default=Path("out/dynunet"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task = TASKS["hippocampus"]
    comparison = ranp.compare(
        build,
        train,
        methods=COMPARED,
        budget={"flops": arguments.flops},
        seeds=SEEDS,
        length=CHECK_INS,
        cost=task.cost,
        candidates=CANDIDATES,
        score_with=(task.loader(), task.loss),
        example_input=task.shape,
        out=arguments.out,
    )
    print(comparison)


if __name__ == "__main__":
    main()
