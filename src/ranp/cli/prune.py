"""`ranp prune`: score, plan and slim, all at once."""

from __future__ import annotations

from typing import Annotated

import typer

from ranp.cli._common import ensure_out, load_network, next_command, say, show_result
from ranp.cli._options import (
    BatchOption,
    ChoiceOptions,
    InputOption,
    NetworkArgument,
    OutOption,
    Output,
    ScoringOptions,
    SparsityOption,
    grouped,
)


@grouped
def command(
    context: typer.Context,
    network: NetworkArgument,
    sparsity: SparsityOption,
    choosing: ChoiceOptions,
    scoring: ScoringOptions,
    output: Output,
    input_shape: InputOption = None,
    batch: BatchOption = 1,
    auto: Annotated[
        bool,
        typer.Option(
            "--auto",
            help="Stop scoring when the kept neurons no longer change; at the latest after "
            "16 batches, or --samples.",
        ),
    ] = False,
    out: OutOption = None,
) -> None:
    """Prune a network before training and say what it costs then."""
    from ranp.cli._scoring import ScoringListener, keep_interrupted, open_source
    from ranp.pipeline import prune, trace
    from ranp.pruning.early_stop import AT_MOST

    ensure_out(out)
    net = load_network(network, input_shape)
    choice = choosing.choice(net)
    most = {"most": AT_MOST * batch} if auto else {}
    source = open_source(net, [choice.method], scoring, batch=batch, seed=choosing.seed, **most)
    if choice.method.needs_scores:
        say(output.quiet, f"Scoring {network} with {source.about}.")
    listener = ScoringListener(
        output.quiet,
        source.number,
        keep=None if out is None else out / "scores.safetensors",
        on_interrupt=keep_interrupted(
            context,
            out,
            lambda kept: next_command(
                context, "plan", network, kept, out=kept.with_name("plan.json")
            ),
            samples=None if source.number is None else source.number * batch,
        ),
    )
    with output.infeasible_as_json(network, choice.method.name, sparsity), listener:
        result = prune(
            trace(
                net.model,
                source.batches,
                example_input=net.input_shape,
                protect=choosing.protect or (),
            ),
            choice,
            sparsity,
            source.scoring(scoring, choosing.seed, until_stable=auto),
            network=network,
            events=listener,
        )
    about = source.about if choice.method.needs_scores else None
    show_result(output, result, out, about)
