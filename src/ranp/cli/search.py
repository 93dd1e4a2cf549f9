"""`ranp search`: the largest sparsity that leaves a neuron in every layer (Algorithm 2)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ranp.cli._choosing import CouplingOption, LambdaOption, MethodOption, ResourceOption
from ranp.cli._common import (
    InputOption,
    JsonOption,
    NetworkArgument,
    ProtectOption,
    QuietOption,
    load_network,
    say,
    show_json,
)
from ranp.cli._scoring import (
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
)


def command(
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
    import ranp
    from ranp.graph import build_graph
    from ranp.pruning import find_method

    row = find_method(method)
    net = load_network(network, input_shape)
    graph = build_graph(net.model, net.input_shape, protect=protect or ())
    found = ranp.Scores.load(scores) if scores else None
    if found is None and row.needs_scores:
        source = open_source(net, row, data, loss, samples, batch, size, seed)
        say(quiet, f"Scoring {network} with {source.about}.")
        found, interruption = run_scoring(
            net, graph, source, [method], weights=weights, per=per, seed=seed, quiet=quiet
        )
        if interruption.number:
            raise typer.Exit(interruption.exit_code)
    largest = ranp.search(
        net.model,
        found,
        method=method,
        lam=lam if lam is not None or net.spec is None else net.spec.reweighting,
        resource=resource,
        coupling=coupling,
        seed=seed,
        graph=graph,
    )
    if as_json:
        show_json({"network": network, "method": method, "max_sparsity": largest})
    else:
        typer.echo(
            f"{method} on {network}: every layer keeps a neuron up to sparsity {largest:.4f}"
        )
    say(quiet, f"Next: ranp prune {network} --method {method} --sparsity {0.8 * largest:.2f}")
