"""`ranp score`: one pass over the data; the result serves any method, sparsity and lambda."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ranp.cli._common import next_command, show_json
from ranp.cli._networks import load_network
from ranp.cli._options import (
    SCORING,
    BatchOption,
    InputOption,
    NetworkArgument,
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
    network: NetworkArgument,
    scoring: ScoringOptions,
    output: Output,
    out: Annotated[Path, typer.Option("--out", help="Where the scores go.")] = Path(
        "scores.safetensors"
    ),
    input_shape: InputOption = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method the scores must serve; may be repeated. See `ranp methods`."),
    ] = None,
    batch: BatchOption = 1,
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option(help="Go on from what --out holds already.")] = False,
    protect: ProtectOption = None,
) -> None:
    """Score every neuron of a network, once, before training."""
    from ranp.cli._scoring import ScoringListener, open_source
    from ranp.files import ensure_directory
    from ranp.pipeline import score, trace
    from ranp.pruning import Scores, find_method

    methods = [find_method(name) for name in method or ["ranp-f"]]
    ensure_directory(out.parent)
    net = load_network(network, input_shape)
    source = open_source(net, methods, scoring, batch=batch, seed=seed)
    before = Scores.load(out) if resume and out.exists() else None
    traced = trace(net.model, source.batches, example_input=net.input_shape, protect=protect or ())
    output.say(f"Scoring {network} with {source.about}.")

    def interrupted(scores: Scores, code: int) -> None:
        scores.save(out)
        _show(output, network, traced, scores, out)
        go_on = next_command(context, "score", network, out=out, resume=True)
        typer.echo(f"Interrupted. Score the rest: {go_on}", err=True)

    with ScoringListener(output, keep=out, on_interrupt=interrupted) as listener:
        how = source.scoring(scoring, seed, resume=before)
        scores = score(traced, methods, how, listener)
    _show(output, network, traced, scores, out)
    following = next_command(
        context, "search", network, method=methods[0].name, scores=out, without=SCORING
    )
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
