"""`ranp prune`: score, plan and slim, all at once."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ranp.cli._choosing import (
    CouplingOption,
    FloorOption,
    LambdaOption,
    MethodOption,
    MultipleOption,
    ResourceOption,
    SparsityOption,
    infeasible_as_json,
    make_chooser,
    plan_to_dict,
)
from ranp.cli._common import (
    InputOption,
    JsonOption,
    NetworkArgument,
    ProtectOption,
    QuietOption,
    load_network,
    next_command,
    say,
    say_where,
    show,
    show_json,
)
from ranp.cli._scoring import (
    BatchOption,
    DataOption,
    LossOption,
    PerOption,
    SeedOption,
    SizeOption,
    WeightsOption,
    open_source,
    run_scoring,
    stop_interrupted,
)


def command(
    context: typer.Context,
    network: NetworkArgument,
    sparsity: SparsityOption,
    method: MethodOption = "ranp-f",
    lam: LambdaOption = None,
    resource: ResourceOption = None,
    coupling: CouplingOption = "paper",
    floor: FloorOption = 0,
    multiple: MultipleOption = 1,
    input_shape: InputOption = None,
    data: DataOption = None,
    loss: LossOption = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Samples to score with, at the most; 8 if not given, with --auto 16 batches.",
        ),
    ] = None,
    batch: BatchOption = 1,
    per: PerOption = "batch",
    size: SizeOption = None,
    weights: WeightsOption = "fresh",
    auto: Annotated[
        bool, typer.Option("--auto", help="Stop scoring when the kept neurons no longer change.")
    ] = False,
    seed: SeedOption = 0,
    protect: ProtectOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Directory for plan, scores, fresh weights and report."),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Prune a network before training and say what it costs then."""
    from dataclasses import replace

    from ranp.files import ensure_directory
    from ranp.graph import build_graph
    from ranp.pipeline import make_result
    from ranp.pruning import StabilityStop, find_method
    from ranp.pruning.early_stop import AT_MOST
    from ranp.pruning.equations import check_sparsity
    from ranp.report.page import write_report

    row = find_method(method)
    check_sparsity(sparsity)
    if out is not None:
        ensure_directory(out)
    net = load_network(network, input_shape)
    if samples is None:
        samples = AT_MOST * batch if auto else 8
    source = (
        open_source(net, row, data, loss, samples, batch, size, seed) if row.needs_scores else None
    )
    graph = build_graph(net.model, net.input_shape, protect=protect or ())
    chooser = make_chooser(
        net,
        graph,
        row,
        lam=lam,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        seed=seed,
    )
    if source is not None:
        say(quiet, f"Scoring {network} with {source.about}.")
        unscored = chooser
        settled = StabilityStop(lambda so_far: replace(unscored, scores=so_far).choose(sparsity))
        scores, interruption = run_scoring(
            net,
            graph,
            source,
            [method],
            weights=weights,
            per=per,
            seed=seed,
            quiet=quiet,
            stop=settled if auto else None,
        )
        if interruption.number:
            stop_interrupted(
                context,
                interruption,
                scores,
                out,
                lambda kept: next_command(
                    context, "plan", network, kept, out=kept.with_name("plan.json")
                ),
                samples=samples,
            )
        if auto:
            say(quiet, settled.verdict)
        chooser = replace(chooser, scores=scores)
        if out is not None:  # also where the sparsity turns out not to be feasible
            scores.save(out / "scores.safetensors")
    with infeasible_as_json(as_json, network, chooser, sparsity):
        result = make_result(chooser, sparsity, protect or (), network=network)
    report = None
    if out is not None:
        result.save(
            out,
            command=shlex.join(["ranp", *sys.argv[1:]]),
            data=source.about if source is not None else None,
        )
        report = write_report(out)
    if as_json:
        show_json(plan_to_dict(result.plan))
    else:
        show(result)
    say_where(quiet, out, report)
