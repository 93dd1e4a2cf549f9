"""`ranp bench`: full against slim on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ranp.cli._common import ensure_out
from ranp.cli._networks import Network, NetworkOptions, load_planned, parse_sizes, traced_shape
from ranp.cli._options import Output, ScoringOptions, grouped
from ranp.cli._training import FactoryOption
from ranp.errors import UsageError

if TYPE_CHECKING:
    from ranp.slimming import Plan

_SCORING_SIZE, _SCORING_SAMPLES = 32, 2


@grouped
def command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="NET|RUN|PLAN",
            help="A network's name, a run directory, a plan.json, or the directory that has it.",
        ),
    ],
    output: Output,
    network: FactoryOption = None,
    sizes: Annotated[
        str | None, typer.Option(help="Edges of the volumes (or frames), such as 32,64.")
    ] = None,
    batches: Annotated[str, typer.Option(help="Batch sizes, such as 1,2.")] = "1,2",
    mode: Annotated[
        Literal["both", "train", "inference"], typer.Option(help="What to measure.")
    ] = "both",
    optimize: Annotated[
        bool, typer.Option("--optimize", help="Apply ranp.optimize to both networks first.")
    ] = False,
    repetitions: Annotated[int, typer.Option(min=1, help="Timed runs of each network.")] = 3,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Measure even if the machine is busy.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Directory for bench.json and bench.png.")
    ] = None,
) -> None:
    """Measure full and slim network side by side: training step, inference, memory."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler, which sees memory, talks a lot
    import torch

    from ranp.files import write_sealed_json
    from ranp.report.speed import bench_table, draw_bench
    from ranp.resources.latency import MODES
    from ranp.speed.bench import batch_shapes, compare_speed

    ensure_out(out)
    edges = () if sizes is None else parse_sizes(sizes, "--sizes", "32,64")
    samples = parse_sizes(batches, "--batches", "1,2")
    if threads is not None:
        torch.set_num_threads(threads)
    plan, full = _open(target, network, output)
    bench = compare_speed(
        full.model,
        plan.apply(full.model),
        batch_shapes(full.input_shape, edges, samples),
        theoretical=plan.flops_ratio,
        modes=MODES if mode == "both" else (mode,),
        optimized=optimize,
        repetitions=repetitions,
        force=force,
        step=lambda message: output.say(f"Measuring {message}."),
    )
    record = {
        "network": full.name,
        "method": plan.method,
        "sparsity": plan.settings.get("sparsity"),
        "optimized": optimize,
        **bench.to_dict(),
    }
    how = "both optimized" if optimize else "as they are"
    caption = (
        f"{full.name}, {plan.method}, {how}: {bench.machine['device']}, "
        f"{bench.machine['threads']} threads, load {bench.load:.1f}"
    )
    if out is not None:
        write_sealed_json(out / "bench.json", {"kind": "bench", "schema": 1, **record})
        draw_bench(out / "bench.png", record["comparisons"], caption)
    output.show(record, bench_table(record["comparisons"], caption))
    if out is not None:
        output.say(f"Record and picture in {out}.")
    output.say("Next: ranp doctor says what slows this machine down.")


def _open(target: str, own: str | None, output: Output) -> tuple[Plan, Network]:
    """Return the network to compare, and the plan of the slim one."""
    path = Path(target)
    if (path / "config.json").is_file():
        return _open_run(path)
    if path.is_dir():  # what `ranp prune --out` wrote
        path /= "plan.json"
    if path.suffix == ".json":
        return load_planned(path, own)
    return _open_network(target, output)


def _open_run(directory: Path) -> tuple[Plan, Network]:
    from ranp.training.job import read_job
    from ranp.training.networks import build_network
    from ranp.training.preparation import stored_plan

    plan = stored_plan(directory)
    if plan is None:
        raise UsageError(f"run '{directory}' trained the full network: it has no plan to compare")
    model = build_network(read_job(directory).config.network)
    return plan, Network(directory.name, model, traced_shape(plan), spec=None)


def _open_network(name: str, output: Output) -> tuple[Plan, Network]:
    """Return a network of the paper, pruned as there, scored with a few synthetic samples."""
    import torch

    from ranp.cli._scoring import ScoringListener, open_source
    from ranp.pipeline import make_chooser, make_plan
    from ranp.pruning import Choice

    if ":" in name:
        raise UsageError(f"prune '{name}' first, and name its plan: ranp bench DIR/plan.json")
    network = NetworkOptions(name).load()
    assert network.spec is not None
    torch.manual_seed(0)
    is_volume = len(set(network.input_shape[2:])) == 1
    scoring = ScoringOptions(samples=_SCORING_SAMPLES, size=_SCORING_SIZE if is_volume else None)
    choice = Choice.make("ranp-f", lam=network.spec.lam)
    source = open_source(network, [choice.method], scoring)
    output.say(f"Scoring {name} with {source.about}.")
    traced = network.trace(source.batches, None)
    with ScoringListener(output) as listener:
        chooser = make_chooser(traced, choice, source.scoring, listener)
    return make_plan(chooser, network.spec.sparsity, network=name), network
