"""`ranp demo`: what pruning does to a 3D-UNet, in about a minute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ranp.cli._common import show
from ranp.cli._options import Output, QuietOption
from ranp.display import MIB

if TYPE_CHECKING:
    from rich.table import Table

    from ranp.experiments.demo import Demo


def command(
    out: Annotated[
        Path, typer.Option("--out", help="Directory for the plan and the pictures.")
    ] = Path("out/demo"),
    seconds: Annotated[float, typer.Option(help="Training time of each network.")] = 10.0,
    quiet: QuietOption = False,
) -> None:
    """Prune the paper's 3D-UNet on synthetic shapes; show what it saves and how it trains."""
    # Read when torch is first imported. The profiler announces itself at lower levels; threads
    # that wait actively stall each other on a machine that has other work too.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from ranp.experiments.demo import NETWORK, run_demo
    from ranp.files import ensure_directory
    from ranp.report.terminal import retained_table

    ensure_directory(out)
    output = Output(quiet=quiet)
    demo = run_demo(out, seconds, lambda message: output.say(f"  {message} ..."))
    layers = demo.results["ranp-f"].plan.layers
    show("")
    rows = [(name, layer.neurons, len(layer.kept)) for name, layer in layers.items()]
    show(retained_table(rows, title="Neurons that RANP-f keeps"))
    show("")
    show(_comparison(demo))
    show("")
    show(_race(demo))
    output.say(
        f"\nPlan and pictures in {out}: plan.json, retained.png, convergence.png\n"
        f"Open {out / 'report.html'} in a browser and move the slider.\n"
        f"Next: ranp profile {NETWORK}\n"
        f"      ranp prune {NETWORK} --sparsity 0.7824 --out out/shapenet\n"
        "      ranp methods",
    )


def _comparison(demo: Demo) -> Table:
    from ranp.report.terminal import numbers, table

    result = table(
        "network",
        *numbers("sparsity", "GFLOPs", "params MB", "memory MB", "step ms", "peak MB"),
        title="What is left of the 3D-UNet",
        caption="GFLOPs, params, memory: counted at 64^3 by the paper's rules.\n"
        "Step and peak: a training step at 32^3, batch 1, measured now.",
    )
    full = next(iter(demo.results.values())).before
    rows = [("full", "", full)]
    for name, pruned in demo.results.items():
        rows.append((name, f"{100 * pruned.plan.settings['sparsity']:.1f} %", pruned.after))
    for name, sparsity, counted in rows:
        costs, step = counted.totals(), demo.measured[name]
        result.add_row(
            name,
            sparsity,
            f"{costs['gflops']:.2f}",
            f"{costs['param_mb']:.2f}",
            f"{costs['memory_mb']:.1f}",
            f"{1000 * step.seconds:.0f}",
            f"{step.peak_bytes / MIB:.0f}",
        )
    return result


def _race(demo: Demo) -> Table:
    from ranp.report.terminal import Bar, numbers, table

    result = table(
        "network",
        *numbers("seconds", "steps", "loss at first", "at the end"),
        "",
        title="Training side by side",
        caption="Bars: the running mean of the loss at the end.",
    )
    highest = max(points[0][1] for points in demo.curves.values())
    for name, points in demo.curves.items():
        result.add_row(
            name,
            f"{points[-1][0]:.1f}",
            str(len(points)),
            f"{points[0][1]:.2f}",
            f"{points[-1][1]:.2f}",
            Bar(min(points[-1][1] / highest, 1.0)),
        )
    return result
