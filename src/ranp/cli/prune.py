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
    infeasible_to_dict,
    plan_to_dict,
)
from ranp.cli._common import (
    InputOption,
    JsonOption,
    NetworkArgument,
    ProtectOption,
    QuietOption,
    load_network,
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
)


def command(
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
    from functools import partial

    from ranp.api import make_result
    from ranp.errors import InfeasibleError
    from ranp.files import ensure_directory
    from ranp.graph import build_graph
    from ranp.pruning import DEFAULT_LAMBDA, Chooser, Settled, find_method
    from ranp.pruning.early_stop import AT_MOST
    from ranp.pruning.select import check_sparsity

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
    if lam is None:
        lam = DEFAULT_LAMBDA if net.spec is None else net.spec.reweighting
    chooser = partial(
        Chooser,
        net.model,
        graph,
        row,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        seed=seed,
        lam=lam,
    )
    scores = None
    if source is not None:
        say(quiet, f"Scoring {network} with {source.about}.")
        settled = Settled(lambda so_far: chooser(scores=so_far).choose(sparsity))
        scores, interruption = run_scoring(
            net,
            graph,
            source,
            [method],
            weights=weights,
            per=per,
            seed=seed,
            quiet=quiet,
            enough=settled if auto else None,
        )
        if auto:
            scores = settled.noted(scores)
        if out is not None:
            scores.save(out / "scores.safetensors")
        if interruption.number:
            if out is not None:
                say(
                    quiet,
                    f"Interrupted. What was scored is in {out / 'scores.safetensors'}: "
                    f"ranp plan {network} {out / 'scores.safetensors'} --sparsity {sparsity}",
                )
            raise typer.Exit(interruption.exit_code)
        if auto:
            say(quiet, settled.verdict)
    choice = chooser(scores=scores)
    try:
        result = make_result(choice, sparsity, protect or (), network=network)
    except InfeasibleError:
        if as_json:
            show_json(infeasible_to_dict(choice, sparsity))
        raise
    report = None
    if out is not None:
        report = result.save(
            out,
            command=shlex.join(["ranp", *sys.argv[1:]]),
            data=source.about if source is not None else None,
        )
    if as_json:
        show_json(plan_to_dict(result.plan))
    else:
        show(result)
    say_where(quiet, out, report)
