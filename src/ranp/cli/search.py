"""`ranp search`: the largest sparsity that leaves a neuron in every layer (Algorithm 2)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ranp.cli._choosing import (
    CouplingOption,
    LambdaOption,
    MethodOption,
    ResourceOption,
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
    show_json,
)
from ranp.cli._scoring import (
    SCORING,
    BatchOption,
    DataOption,
    LossOption,
    PerOption,
    SamplesOption,
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
    method: MethodOption = "ranp-f",
    scores: Annotated[
        Path | None, typer.Option(help="Made by `ranp score`; scored anew if not given.")
    ] = None,
    lam: LambdaOption = None,
    resource: ResourceOption = None,
    coupling: CouplingOption = "paper",
    input_shape: InputOption = None,
    data: DataOption = None,
    loss: LossOption = None,
    samples: SamplesOption = 8,
    batch: BatchOption = 1,
    per: PerOption = "batch",
    size: SizeOption = None,
    weights: WeightsOption = "fresh",
    seed: SeedOption = 0,
    protect: ProtectOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find the largest sparsity at which every layer keeps at least one neuron."""
    from dataclasses import replace

    from ranp.graph import build_graph
    from ranp.pipeline import make_plan
    from ranp.pruning import Scores, find_method
    from ranp.pruning.search import floor_sparsity

    row = find_method(method)
    net = load_network(network, input_shape)
    graph = build_graph(net.model, net.input_shape, protect=protect or ())
    chooser = make_chooser(
        net,
        graph,
        row,
        scores=Scores.load(scores) if scores else None,
        lam=lam,
        resource=resource,
        coupling=coupling,
        seed=seed,
    )
    if scores is None and row.needs_scores:
        source = open_source(net, row, data, loss, samples, batch, size, seed)
        say(quiet, f"Scoring {network} with {source.about}.")
        found, interruption = run_scoring(
            net, graph, source, [method], weights=weights, per=per, seed=seed, quiet=quiet
        )
        if interruption.number:
            stop_interrupted(
                context,
                interruption,
                found,
                None,
                lambda kept: next_command(context, "search", network, scores=kept, without=SCORING),
            )
        chooser = replace(chooser, scores=found)
    with infeasible_as_json(as_json, network, chooser, 0.0):
        largest = chooser.max_sparsity()
    if as_json:
        plan = make_plan(chooser, largest, protect or (), network)
        show_json({**plan_to_dict(plan), "max_sparsity": largest})
    else:
        typer.echo(
            f"{method} on {network}: every layer keeps a neuron up to sparsity "
            f"{floor_sparsity(largest)}"
        )
    sparsity = float(floor_sparsity(0.8 * largest))
    if scores is None:
        following = next_command(context, "prune", network, sparsity=sparsity)
    else:
        following = next_command(context, "plan", network, scores, sparsity=sparsity)
    say(quiet, f"Next: {following}")
