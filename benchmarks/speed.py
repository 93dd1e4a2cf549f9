"""How much of the speed-up that FLOPs promise is real, and latency budgets when measured again.

    python -m benchmarks speed

About twenty minutes on an idle machine. A busy one is not measured, unless RANP_FORCE=1 says so.
Full and slim network get the same treatment, and take turns.
"""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.nn import functional as F

import ranp
from ranp.datasets import synthetic_cases
from ranp.datasets.loader import Loader
from ranp.graph import build_graph
from ranp.models import build_network, find_network
from ranp.resources.latency import MODES, measure_ratio
from ranp.resources.machine import BUSY, load, others_running
from ranp.speed.bench import Comparison, compare_speed

NETWORK = "unet3d-shapenet"
EDGE, BATCHES = 64, (1, 2)
SCORED_EDGE, SCORED_SAMPLES = 32, 2
WANTED = {"train": 0.5, "inference": 0.6}
REPETITIONS = 3
PRECISE, MOST_SECONDS = 0.01, 300.0
# Networks whose training step shall take half the time, and at which input.
HALVED = {
    "unet3d-shapenet": (1, 1, 32, 32, 32),
    "mobilenetv2-ucf101": (1, 3, 16, 112, 112),
    "i3d-ucf101": (1, 3, 9, 193, 193),
}
_MIB = 2**20


def pruned() -> tuple[nn.Module, ranp.Plan]:
    """The network of the paper and its RANP-f plan at 78.24 %, scored with two synthetic shapes."""
    spec = find_network(NETWORK)
    torch.manual_seed(0)
    model = build_network(NETWORK)
    loader = Loader(
        synthetic_cases("shapenet", size=SCORED_EDGE, samples=SCORED_SAMPLES, seed=0),
        1,
        training=True,
    )
    graph = build_graph(model, spec.input_shape)
    scores = ranp.score(model, loader, cross_entropy, graph=graph)
    plan = ranp.plan(model, scores, sparsity=spec.sparsity, lam=spec.lam, graph=graph)
    return model, plan


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, target, ignore_index=255)


def realised() -> None:
    """The share of the theoretical speed-up, both networks as given and both optimized."""
    full, plan = pruned()
    slim = plan.apply(full)
    theoretical = plan.costs["full"]["gflops"] / plan.costs["slim"]["gflops"]
    print(
        f"{NETWORK}, RANP-f at {plan.settings['sparsity']:.2%}, {EDGE}^3, both optimized; "
        f"{torch.get_num_threads()} threads; FLOPs promise {theoretical:.1f} x"
    )
    print(
        f"{'what':<10} {'batch':>5} {'load':>5} {'full s':>8} {'slim s':>8} {'±':>4} {'x':>5} "
        f"{'realised':>8} {'wanted':>6}   {'as given':>14} {'slim MiB':>8}"
    )
    for batch in BATCHES:
        for mode in MODES:
            shape = (batch, 1, EDGE, EDGE, EDGE)
            bench = compare_speed(
                full,
                slim,
                [shape],
                theoretical=theoretical,
                modes=(mode,),
                optimized=True,
                repetitions=REPETITIONS,
                force=True,  # asked once, at the beginning
            )
            print(_row(bench.comparisons[0], bench.load), flush=True)
    print("as given: the same networks without ranp.optimize, in a process that keeps memory")


def _row(c: Comparison, busy: float) -> str:
    given = c.as_given["full"] / c.as_given["slim"]
    spread = max(c.full.spread, c.slim.spread)
    return (
        f"{c.mode:<10} {c.shape[0]:>5} {busy:5.1f} {c.full.seconds:8.2f} {c.slim.seconds:8.3f} "
        f"{spread:4.0%} {c.speedup:5.1f} {c.realised:8.0%} {WANTED[c.mode]:6.0%}   "
        f"{given:5.1f} x, {given / c.theoretical:4.0%} {c.slim.peak_bytes / _MIB:8.0f}"
    )


def halved() -> None:
    """Prunes until a training step takes half the time, and measures it again."""
    print("\nHalf the time of a training step, batch 1 (at most 5 % off when measured again)")
    print(
        f"{'network':<20} {'sparsity':>8} {'full s':>8} {'found':>6} {'again':>6} {'±':>5} "
        f"{'off':>6}"
    )
    for name, shape in HALVED.items():
        torch.manual_seed(0)
        model, x = build_network(name).train(), torch.randn(shape)
        labels = torch.zeros(1, *(shape[2:] if name.startswith("unet") else ()), dtype=torch.long)
        fitted = ranp.fit(
            model,
            [(x, labels)],
            F.cross_entropy,
            latency="50%",
            method="ranp-l",
            lam=find_network(name).lam,
            floor=1,
        )
        found = fitted.figures["slim"]["latency"] / fitted.figures["full"]["latency"]
        again = measure_ratio(
            fitted.model,
            model,
            shape,
            enough=lambda ratio: ratio.error <= PRECISE,
            most_seconds=MOST_SECONDS,
        )
        print(
            f"{name:<20} {fitted.sparsity:8.4f} {fitted.figures['full']['latency']:8.3f} "
            f"{found:6.1%} {again.value:6.1%} ±{again.error:4.1%} {again.value / 0.5 - 1:+6.1%}",
            flush=True,
        )


def run() -> None:
    others = others_running()
    if others > BUSY and os.environ.get("RANP_FORCE") != "1":
        print(
            f"not measured: {others:.1f} other threads are running (load {load():.1f}); "
            "wait until the machine is idle, or set RANP_FORCE=1"
        )
        return
    realised()
    halved()


if __name__ == "__main__":
    run()
