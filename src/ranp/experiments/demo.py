"""The demo: a 3D-UNet before and after, scored, measured and trained, in about a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from ranp.datasets import synthetic_cases
from ranp.datasets.loader import Loader
from ranp.datasets.voxels import EMPTY
from ranp.models import build_network, find_network
from ranp.models.initialization import glorot_normal_
from ranp.pipeline import Scoring, make_result, score, trace
from ranp.pruning import Choice, Chooser, make_forward
from ranp.report.figures import draw_convergence, draw_retained
from ranp.report.page import write_report
from ranp.resources.measuring import Measured, measure_in_turns, train_step
from ranp.results import Result

NETWORK = "unet3d-shapenet"
COMPARED = ("ranp-f", "ranp-m", "vanilla", "layerwise")
SIZE = 32  # scored, measured and trained at 32^3; costs are counted at the network's own 64^3
SAMPLES = 3
LOSS = nn.CrossEntropyLoss(ignore_index=EMPTY)
VANILLA_MARGIN = 0.98  # vanilla cannot be pruned as far: its row stands at its own maximum


@dataclass(frozen=True)
class Demo:
    """Slim networks by method; what was measured of them, and of the full one as "full".

    `curves` are (seconds, loss) after each training step, of the full and the RANP-f network.
    """

    results: Mapping[str, Result]
    measured: Mapping[str, Measured]
    curves: Mapping[str, list[tuple[float, float]]]


def run_demo(out: Path, seconds: float, say: Callable[[str], None]) -> Demo:
    """Prune, measure and train each network for some seconds; write pictures and the plan."""
    spec = find_network(NETWORK)
    torch.manual_seed(0)
    model = build_network(NETWORK)
    say(f"Tracing {NETWORK} at {' x '.join(map(str, spec.input_shape))}")
    cases = synthetic_cases("shapenet", size=SIZE, samples=SAMPLES, seed=0)
    loader = Loader(cases, 1, training=True)
    traced = trace(model, loader, example_input=spec.input_shape)
    graph = traced.graph
    say(f"Scoring {graph.neurons:,} neurons with {SAMPLES} synthetic shapes at {SIZE}^3")
    choices = {name: Choice.make(name, lam=spec.lam) for name in COMPARED}
    scoring = Scoring(forward=make_forward(LOSS, None))
    scores = score(traced, [choice.method for choice in choices.values()], scoring)

    results = {}
    for name, choice in choices.items():
        chooser = Chooser(model, graph, choice, scores)
        sparsity = min(spec.sparsity, VANILLA_MARGIN * chooser.max_sparsity())
        alive = chooser.choose_feasible(sparsity)
        results[name] = make_result(chooser, sparsity, alive=alive, network=NETWORK)
    models = {"full": model, **{name: result.model for name, result in results.items()}}
    glorot_normal_(model, gamma="ones", generator=torch.Generator().manual_seed(0))

    say(f"Measuring training steps at {SIZE}^3, batch 1")
    batch = next(iter(loader))
    steps = {
        name: partial(train_step, m, lambda m: LOSS(m(batch["x"]), batch["y"]))
        for name, m in models.items()
    }
    measured = measure_in_turns(steps, repetitions=2)
    say(f"Training full and RANP-f side by side, {seconds:.0f} s each")
    curves = {name: train(models[name], seconds) for name in ("full", "ranp-f")}

    neurons = [len(layer) for layer in graph.layers.values()]
    kept = {
        name: [len(layer.kept) for layer in result.plan.layers.values()]
        for name, result in results.items()
    }
    draw_retained(out / "retained.png", list(graph.layers), neurons, kept)
    caption = f"{NETWORK} on synthetic parts at {SIZE}^3, CPU"
    draw_convergence(out / "convergence.png", curves, caption)
    results["ranp-f"].save(
        out,
        command="ranp demo",
        data=f"{SAMPLES} synthetic shapes at {SIZE}^3",
        measured={"full": asdict(measured["full"]), "slim": asdict(measured["ranp-f"])},
    )
    write_report(out)
    return Demo(results, measured, curves)


def train(model: nn.Module, seconds: float) -> list[tuple[float, float]]:
    """Train for a while, as the paper does, and return (seconds, running mean of the loss)."""
    loader = Loader(synthetic_cases("shapenet", size=SIZE, samples=64, seed=1), 1, training=True)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4
    )
    model.train()
    points: list[tuple[float, float]] = []
    smooth, epoch, start = 0.0, 0, time.perf_counter()
    while True:
        for batch in loader.epoch(epoch):
            optimizer.zero_grad(set_to_none=True)
            loss = LOSS(model(batch["x"]), batch["y"])
            torch.autograd.backward(loss)
            optimizer.step()
            smooth = 0.8 * smooth + 0.2 * loss.item() if points else loss.item()
            points.append((time.perf_counter() - start, smooth))
            if points[-1][0] >= seconds:
                return points
        epoch += 1
