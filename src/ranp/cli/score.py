"""`ranp score`: one pass over the data; the result serves any method, sparsity and lambda."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ranp.cli._common import next_command, show_json
from ranp.cli._networks import NetworkOptions
from ranp.cli._options import (
    BatchOption,
    Output,
    ProtectOption,
    ScoringOptions,
    SeedOption,
    grouped,
)

if TYPE_CHECKING:
    from ranp.pipeline import Traced
    from ranp.pruning import Scores


@grouped
def command(
    context: typer.Context,
    named: NetworkOptions,
    scoring: ScoringOptions,
    output: Output,
    out: Annotated[Path, typer.Option("--out", help="File for the scores.")] = Path(
        "scores.safetensors"
    ),
    method: Annotated[
        list[str] | None,
        typer.Option(help="Method to score for, see `ranp methods`; may be repeated."),
    ] = None,
    batch: BatchOption = 1,
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option(help="Continue from the scores in --out.")] = False,
    protect: ProtectOption = None,
) -> None:
    """Score every neuron of a network, once, before training."""
    from ranp.cli._scoring import ScoringListener, open_source, search_without
    from ranp.files import ensure_directory
    from ranp.pipeline import score
    from ranp.pruning import Scores, find_method

    methods = [find_method(name) for name in method or ["ranp-f"]]
    ensure_directory(out.parent)
    net = named.load(scoring.data, scoring.forward)
    source = open_source(net, methods, scoring, batch=batch, seed=seed)
    before = Scores.load(out) if resume and out.exists() else None
    traced = net.trace(source.batches, protect)
    output.say(f"Scoring {net.name} with {source.about}.")

    def interrupted(scores: Scores) -> None:
        scores.save(out)
        _show(output, net.name, traced, scores, out)
        go_on = next_command(context, "score", net.name, out=out, resume=True)
        typer.echo(f"Interrupted. Score the rest: {go_on}", err=True)

    with ScoringListener(output, keep=out, on_interrupt=interrupted) as listener:
        scores = score(traced, methods, replace(source.scoring, resume=before), listener)
    _show(output, net.name, traced, scores, out)
    found = {"method": methods[0].name, "scores": out, **net.input_option}
    following = next_command(context, "search", net.name, without=search_without(net), **found)
    output.say(f"Next: {following}")


def _show(output: Output, network: str, traced: Traced, scores: Scores, out: Path) -> None:
    from ranp.resources import count

    graph = traced.graph
    if not output.as_json:
        typer.echo(f"{scores.batches} batches scored, {graph.neurons:,} neurons, in {out}")
        return
    show_json(
        {
            "network": network,
            "full": count(traced.model, graph).totals(),
            "layers": [{"name": n, "neurons": len(own)} for n, own in graph.layers.items()],
            "settings": dict(scores.settings),
            "scores": str(out),
            "batches": scores.batches,
            "neurons": graph.neurons,
        }
    )
