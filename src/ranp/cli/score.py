"""`ranp score`: one pass over the data; the result serves any method, sparsity and lambda."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
)


def command(
    context: typer.Context,
    network: NetworkArgument,
    out: Annotated[Path, typer.Option("--out", help="Where the scores go.")] = Path(
        "scores.safetensors"
    ),
    input_shape: InputOption = None,
    data: DataOption = None,
    loss: LossOption = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method the scores must serve; may be repeated. See `ranp methods`."),
    ] = None,
    samples: SamplesOption = 8,
    batch: BatchOption = 1,
    per: PerOption = "batch",
    size: SizeOption = None,
    weights: WeightsOption = "fresh",
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option(help="Go on from what --out holds already.")] = False,
    protect: ProtectOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score every neuron of a network, once, before training."""
    from ranp.files import ensure_directory
    from ranp.graph import build_graph
    from ranp.pruning import Scores, find_method
    from ranp.resources import count

    methods = method or ["ranp-f"]
    rows = [find_method(name) for name in methods]
    demanding = next((row for row in rows if row.needs_data), rows[0])
    ensure_directory(out.parent)
    net = load_network(network, input_shape)
    source = open_source(net, demanding, data, loss, samples, batch, size, seed)
    graph = build_graph(net.model, net.input_shape, protect=protect or ())
    before = Scores.load(out) if resume and out.exists() else None
    say(quiet, f"Scoring {network} with {source.about}.")
    scores, interruption = run_scoring(
        net, graph, source, methods, weights=weights, per=per, seed=seed, quiet=quiet, resume=before
    )
    scores.save(out)
    if as_json:
        show_json(
            {
                "network": network,
                "full": count(net.model, graph).totals(),
                "layers": [{"name": n, "neurons": len(own)} for n, own in graph.layers.items()],
                "settings": dict(scores.settings),
                "scores": str(out),
                "batches": scores.batches,
                "neurons": graph.neurons,
            }
        )
    else:
        typer.echo(f"{scores.batches} batches scored, {graph.neurons:,} neurons, in {out}")
    if interruption.number:
        go_on = next_command(context, "score", network, out=out, resume=True)
        typer.echo(f"Interrupted. Score the rest: {go_on}", err=True)
        raise typer.Exit(interruption.exit_code)
    following = next_command(
        context, "search", network, method=methods[0], scores=out, without=SCORING
    )
    say(quiet, f"Next: {following}")
