"""What scoring costs, and how fast plans are made.

Run by `python -m benchmarks.scoring`. Two sides of a ratio are measured in turns in one process;
every peak is that of a process of its own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ranp.resources.step_memory import resident

if TYPE_CHECKING:
    from ranp.pruning import Per


def run(*, size: int = 32) -> None:
    """Prints all of it.

    Args:
        size: Edge of the volumes with which the cost of scoring is measured.
    """
    cost_of_scoring(size, batches=3, batch=1, per="batch")
    cost_of_scoring(size, batches=1, batch=4, per="sample")
    speed_of_plans()


def cost_of_scoring(size: int, batches: int, batch: int, per: Per, rounds: int = 5) -> None:
    """Time and memory of scoring over those of plain forward and backward passes of whole batches.

    Times are those of one thread of one process in which both sides take turns, so that what
    else runs on the machine slows both down; a round's ratio is that of neighbours in time.
    """
    seconds = _in_process("times", size, batches, batch, per, rounds)
    pairs = list(zip(seconds[::2], seconds[1::2], strict=True))
    ratio = statistics.median(scoring / plain for plain, scoring in pairs)
    peaks = {
        what: _in_process(what, size, batches, batch, per, 1)[0] for what in ("plain", "score")
    }
    print(
        f"unet3d-shapenet, batches of {batch} at {size}^3, scored per {per}; "
        f"{batches} of them, {rounds} rounds in turns"
    )
    print(
        f"  CPU time of scoring / forward + backward: {ratio:.3f} "
        f"({statistics.median(scoring for _, scoring in pairs):.1f} s)"
    )
    print(f"  peak memory likewise:                     {peaks['score'] / peaks['plain']:.3f}")


def _in_process(what: str, *arguments: int | str) -> list[float]:
    """Figures that `_measured` prints in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scoring", what, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if what != "times":  # freed memory goes back at once, so that peaks are those of tensors
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [float(figure) for figure in done.stdout.split()]


def _measured(what: str, size: int, batches: int, batch: int, per: Per, rounds: int) -> None:
    """Prints peak bytes over an idle process of one side, or seconds of both sides in turns."""
    from functools import partial

    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    from ranp.datasets import synthetic_cases
    from ranp.datasets.voxels import EMPTY
    from ranp.graph import build_graph
    from ranp.models import build_network
    from ranp.models.initialization import glorot_normal_
    from ranp.pruning import Scoring, make_forward, score

    torch.set_num_threads(1)
    loss = partial(cross_entropy, ignore_index=EMPTY)
    forward = make_forward(loss, None)
    cases = synthetic_cases("shapenet", size=size, samples=batches * batch, seed=0)
    samples = [cases[index] for index in range(batches * batch)]
    data = [
        tuple(torch.stack([sample[key] for sample in samples[i : i + batch]]) for key in "xy")
        for i in range(0, len(samples), batch)
    ]

    def plain() -> None:
        for x, y in data:
            model.zero_grad()
            loss(model(x), y).backward()
        model.zero_grad()

    def scoring() -> None:
        score(model, graph, data, Scoring(forward, weights="given", per=per))

    tiny = nn.Conv3d(1, 50, 3, padding=1)  # libraries load beforehand
    loss(tiny(data[0][0]), data[0][1]).backward()
    model = build_network("unet3d-shapenet").train()
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
    from ranp.models import build_network
    from ranp.pruning import Choice, Chooser, Scores, fingerprint

    model = build_network("unet3d-23-shapenet")
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
            Chooser(model, graph, Choice.make("ranp-f"), Scores.load(path)).choose_feasible(0.8)

        def search() -> None:
            Chooser(model, graph, Choice.make("ranp-f"), Scores.load(path)).max_sparsity()

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


if __name__ == "__main__":
    if len(sys.argv) > 1:
        side, edge, number, together, kind, times = sys.argv[1:]
        _measured(side, int(edge), int(number), int(together), cast("Per", kind), int(times))
    else:
        run()
