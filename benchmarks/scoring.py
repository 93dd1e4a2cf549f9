"""What scoring costs, how fast plans are made, and how near the figures are to the paper's.

Run by `python -m benchmarks.scoring`. Two sides of a ratio are measured in turns in one process;
every peak is that of a process of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

from benchmarks._step_memory import resident

PAPER = files("ranp.experiments") / "paper.json"
NEAR = ("ranp-f", "ranp-m", "weighted", "vanilla", "snip")


def run(
    *,
    size: int = 64,
    samples: int = 6,
    seeds: int = 3,
    cost_size: int = 32,
    cost_batches: int = 3,
    networks: tuple[str, ...] = (
        "unet3d-shapenet",
        "unet3d-brats",
        "mobilenetv2-ucf101",
        "i3d-ucf101",
    ),
) -> None:
    """Prints all of it; the tables beside the paper's take most of the time.

    Args:
        size: Edge of the volumes that networks are scored with; clips have the paper's own size.
        samples: How many of them, one per batch.
        seeds: Repetitions, each with other data and weights.
        cost_size: Edge of the volumes with which the cost of scoring is measured.
        cost_batches: How many of them.
        networks: Rows of the tables beside the paper's; none leaves these out.
    """
    cost_of_scoring(cost_size, cost_batches)
    speed_of_plans()
    for name in networks:
        beside_the_paper(name, size, samples, seeds)


def cost_of_scoring(size: int, batches: int, rounds: int = 5) -> None:
    """Time and memory of scoring over those of plain forward and backward passes.

    Times are those of one thread of one process in which both sides take turns, so that what
    else runs on the machine slows both down; a round's ratio is that of neighbours in time.
    """
    seconds = _in_process("times", size, batches, rounds)
    pairs = list(zip(seconds[::2], seconds[1::2], strict=True))
    ratio = statistics.median(scoring / plain for plain, scoring in pairs)
    peaks = {what: _in_process(what, size, batches, 1)[0] for what in ("plain", "score")}
    print(f"unet3d-shapenet, {batches} batches of one at {size}^3, {rounds} rounds in turns")
    print(
        f"  CPU time of scoring / forward + backward: {ratio:.3f} "
        f"({statistics.median(scoring for _, scoring in pairs):.1f} s)"
    )
    print(f"  peak memory likewise:                     {peaks['score'] / peaks['plain']:.3f}")


def _in_process(what: str, size: int, batches: int, rounds: int) -> list[float]:
    """Figures that `_measured` prints in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scoring", what, *map(str, (size, batches, rounds))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if what != "times":  # freed memory goes back at once, so that peaks are those of tensors
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [float(figure) for figure in done.stdout.split()]


def _measured(what: str, size: int, batches: int, rounds: int) -> None:
    """Prints peak bytes over an idle process of one side, or seconds of both sides in turns."""
    import torch
    from torch import nn

    from ranp.graph import build_graph
    from ranp.models import registry
    from ranp.models.initialization import glorot_normal_
    from ranp.pruning import make_forward, score

    torch.set_num_threads(1)
    loss = _loss("unet3d-shapenet")
    forward = make_forward(loss, None)
    data = list(_batches("unet3d-shapenet", size, batches, seed=0))

    def plain() -> None:
        for x, y in data:
            model.zero_grad()
            loss(model(x), y).backward()
        model.zero_grad()

    def scoring() -> None:
        score(model, graph, data, forward, weights="given")

    tiny = nn.Conv3d(1, 50, 3, padding=1)  # libraries load beforehand
    loss(tiny(data[0][0]), data[0][1]).backward()
    model = registry.build("unet3d-shapenet").train()
    graph = build_graph(model, data[0][0].shape)
    glorot_normal_(model)
    if what == "times":
        plain()
        for side in [plain, scoring] * rounds:
            start = time.process_time()
            side()
            print(time.process_time() - start)
    else:
        idle = resident("VmRSS")
        (plain if what == "plain" else scoring)()
        print(resident("VmHWM") - idle)


def speed_of_plans() -> None:
    """From saved scores of the 23-layer network to a choice, and to the largest sparsity."""
    import tempfile

    import torch

    from ranp.graph import build_graph
    from ranp.models import registry
    from ranp.pruning import METHODS, Chooser, Scores, fingerprint

    model = registry.build("unet3d-23-shapenet")
    graph = build_graph(model, (1, 1, 64, 64, 64))
    generator = torch.Generator().manual_seed(0)
    drawn = {
        name: torch.empty(len(layer), dtype=torch.float64).exponential_(generator=generator)
        for name, layer in graph.layers.items()
    }
    scores = Scores(1, dict.fromkeys(drawn, 1), {"mpmg": drawn}, {}, fingerprint(graph))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.safetensors"
        scores.save(path)

        def plan() -> None:
            Chooser(model, graph, METHODS["ranp-f"], Scores.load(path)).require(0.8)

        def search() -> None:
            Chooser(model, graph, METHODS["ranp-f"], Scores.load(path)).max_sparsity()

        print(f"unet3d-23-shapenet, {graph.neurons} neurons, from saved scores")
        print(f"  choice of neurons: {_milliseconds(plan):7.1f} ms")
        print(f"  Algorithm 2:       {_milliseconds(search):7.1f} ms")


def _milliseconds(work: Callable[[], None], rounds: int = 5) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def beside_the_paper(name: str, size: int, samples: int, seeds: int) -> None:
    """Scores a network on synthetic data and prints its figures beside the paper's.

    Resources are counted at the paper's input size, whatever the size of scoring.
    """
    from ranp.graph import build_graph
    from ranp.models import registry
    from ranp.pruning import METHODS, Chooser, make_forward, score
    from ranp.resources import count

    paper = json.loads(PAPER.read_text())["data_dependent"][name]
    model = registry.build(name)
    graph = build_graph(model, registry.spec(name).input_shape)
    figures: dict[str, list[tuple[float, float, float]]] = {method: [] for method in NEAR}
    largest: dict[str, list[float]] = {"vanilla": [], "ranp-f": []}
    for seed in range(seeds):
        scores = score(
            model,
            graph,
            _batches(name, size, samples, seed),
            make_forward(_loss(name), None),
            statistics=("abs",),
            seed=seed,
        )
        for method in NEAR:
            chooser = Chooser(model, graph, METHODS[method], scores, lam=paper["lambda"])
            sparsity = paper["snip_param_sparsity" if method == "snip" else "sparsity"]
            costs = count(model, graph, chooser.choose(sparsity))
            figures[method].append((costs.gflops, costs.param_mb, costs.memory_mb))
            if method in largest:
                largest[method].append(chooser.max_sparsity())
    print(f"{name}, {samples} synthetic samples, {seeds} seeds: mean [range]; the paper's; error")
    for method, rows in figures.items():
        cells = []
        for key, values in zip(
            ("gflops", "param_mb", "memory_mb"), zip(*rows, strict=True), strict=True
        ):
            mean, printed = statistics.mean(values), paper["methods"][method][key]
            cells.append(
                f"{key} {mean:.2f} [{min(values):.2f}, {max(values):.2f}]; {printed}; "
                f"{mean / printed - 1:+.1%}"
            )
        print(f"  {method:<9}" + " | ".join(cells))
    for method, found in largest.items():
        each = ", ".join(f"{value:.4f}" for value in found)
        print(f"  largest sparsity of {method}: {each}; {paper['max_sparsity'][method]}")


def _batches(name: str, size: int, samples: int, seed: int) -> Iterator[tuple[object, object]]:
    """One sample per batch, made as it is asked for."""
    from ranp.data.synthetic import synthetic_motion, synthetic_parts, synthetic_tumours
    from ranp.models import registry

    spec = registry.spec(name)
    if spec.dataset == "shapenet":
        cases = synthetic_parts(size, samples, seed=seed)
    elif spec.dataset == "brats":
        cases = synthetic_tumours(size, samples, seed=seed)
    else:
        frames, edge = spec.input_shape[2:4]
        cases = synthetic_motion(frames, edge, samples, spec.classes, seed=seed)
    for index in range(samples):
        sample = cases[index]
        yield sample["x"][None], sample["y"][None]


def _loss(name: str) -> Callable[..., object]:
    """The paper's losses; the Dice term as 1 - Dice."""
    from torch import Tensor
    from torch.nn import functional as F

    from ranp.data.voxels import EMPTY

    def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, ignore_index=EMPTY)

    def with_dice(output: Tensor, target: Tensor, alpha: float = 0.25) -> Tensor:
        p = output.softmax(1)
        g = F.one_hot(target, output.shape[1]).movedim(-1, 1).to(p)
        over = tuple(dim for dim in range(p.dim()) if dim != 1)
        dice = 2 * (p * g).sum(over) / (p.sum(over) + g.sum(over)).clamp_min(1e-6)
        return F.cross_entropy(output, target) + alpha * (1 - dice.mean())

    return with_dice if name == "unet3d-brats" else cross_entropy


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _measured(sys.argv[1], *map(int, sys.argv[2:]))
    else:
        run()
