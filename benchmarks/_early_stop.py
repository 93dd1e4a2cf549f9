"""How near the choice after a few batches is to that after 64, on the synthetic parts.

    python -m benchmarks._early_stop SIZE BATCH batch|sample SEED [SEED ...]

scores the 3D-UNet of ShapeNet on 64 batches of BATCH shapes at SIZE^3, in one pass, as a whole or
sample by sample, once for every seed (of shapes and weights), and prints what the first 8, 16, 32
and 48 batches would have kept at the paper's sparsity. On one core a shape takes about 0.4 s at
16^3, 3 s at 32^3 and 23 s at 64^3.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ranp.datasets import synthetic_cases
from ranp.datasets.voxels import EMPTY
from ranp.graph import Alive, ChannelGraph, build_graph
from ranp.models import build_network, find_network
from ranp.pruning import Choice, Chooser, Per, Scores, Scoring, StabilityStop, make_forward, score

NETWORK = "unet3d-shapenet"
SPARSITY = 0.7824
SHOWN = ("ranp-f", "ranp-m", "weighted", "vanilla")
BATCHES, LOOKS = 64, (8, 16, 32, 48)


def agreement_with_the_last(size: int, batch: int, per: Per, seed: int) -> None:
    """Prints a line for every method."""
    model = build_network(NETWORK)
    graph = build_graph(model, find_network(NETWORK).input_shape)
    choices: dict[str, dict[int, Alive]] = {method: {} for method in SHOWN}

    def look(scores: Scores) -> bool:
        if scores.batches <= 16 or scores.batches in (*LOOKS, BATCHES):
            for method, made in choices.items():
                chooser = Chooser(model, graph, Choice.make(method), scores)
                made[scores.batches] = chooser.choose(SPARSITY)
        return False

    batches = _batches(size, batch, seed)
    scoring = Scoring(make_forward(_loss, None), per=per, seed=seed)
    score(model, graph, batches, scoring, enough=look)
    for method, made in choices.items():
        looks = ", ".join(f"{t}: {_shared(made[t], made[BATCHES]):.1%}" for t in LOOKS)
        widths = [_widths(graph, made[t]) for t in (16, BATCHES)]
        per_layer = np.minimum(*widths).sum() / widths[1].sum()
        settled = _settled(made)
        print(
            f"{size}^3, {batch} per batch, scored per {per}, seed {seed}, {method}: "
            f"the same neurons after {looks}; "
            f"the same number per layer after 16: {per_layer:.1%}; "
            f"'auto' says {settled.reached:.1%}, {settled.needed} batches needed",
            flush=True,
        )


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, ignore_index=EMPTY)


def _settled(made: Mapping[int, Alive]) -> StabilityStop:
    choices = iter(made.values())
    settled = StabilityStop(lambda scores: next(choices))
    while not settled(None):  # type: ignore[arg-type]  # the choices are there already
        pass
    return settled


def _shared(few: Alive, many: Alive) -> float:
    return float((few & many).sum() / many.sum())


def _widths(graph: ChannelGraph, alive: Alive) -> np.ndarray:
    return np.array([alive[layer.neurons].sum() for layer in graph.layers.values()])


def _batches(size: int, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    cases = synthetic_cases("shapenet", size=size, samples=BATCHES * batch, seed=seed)
    for start in range(0, len(cases), batch):
        samples = [cases[start + i] for i in range(batch)]
        yield torch.stack([s["x"] for s in samples]), torch.stack([s["y"] for s in samples])


def main() -> None:
    """Reads the command line."""
    torch.set_num_threads(1)
    size, batch, per, *seeds = sys.argv[1:]
    for seed in seeds:
        agreement_with_the_last(int(size), int(batch), cast(Per, per), int(seed))


if __name__ == "__main__":
    main()
