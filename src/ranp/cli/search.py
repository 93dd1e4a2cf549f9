"""`ranp search`: the largest sparsity that leaves a neuron in every layer (Algorithm 2)."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ranp.cli._common import next_command, show_json
from ranp.cli._networks import NetworkOptions
from ranp.cli._options import (
    BatchOption,
    ChoiceOptions,
    Output,
    ScoresOption,
    ScoringOptions,
    grouped,
)


@grouped
def command(
    context: typer.Context,
    named: NetworkOptions,
    choosing: ChoiceOptions,
    scoring: ScoringOptions,
    output: Output,
    scores: ScoresOption = None,
    batch: BatchOption = 1,
    rule: Annotated[
        Literal["paper", "coupled"],
        typer.Option(
            help="paper: each layer's own mask keeps a neuron (Algorithm 2); coupled: each layer "
            "of the slim network does, as in `ranp prune`."
        ),
    ] = "paper",
) -> None:
    """Find the largest sparsity at which every layer keeps at least one neuron."""
    from ranp.cli._scoring import (
        ScoringListener,
        keep_interrupted,
        open_source,
        search_without,
    )
    from ranp.pipeline import make_chooser, make_plan
    from ranp.pruning.search import floor_sparsity

    net = named.load(scoring.data, scoring.forward)
    choice = choosing.choice(net)
    source = open_source(
        net, [choice.method], scoring, batch=batch, seed=choosing.seed, scores=scores
    )
    if scores is None and choice.method.needs_scores:
        output.say(f"Scoring {net.name} with {source.about}.")
    traced = net.trace(source.batches, choosing.protect)
    listener = ScoringListener(
        output,
        on_interrupt=keep_interrupted(
            context,
            None,
            lambda kept: next_command(
                context,
                "search",
                net.name,
                scores=kept,
                without=search_without(net),
                **net.input_option,
            ),
        ),
    )
    with output.infeasible_as_json(net.name, choice.method.name, 0.0), listener:
        chooser = make_chooser(traced, choice, source.scoring, listener)
        largest = chooser.max_sparsity(rule)
        coupled = chooser.max_sparsity("coupled")
    if output.as_json:
        plan = make_plan(chooser, largest, traced.protect, net.name)
        found = {"max_sparsity": largest, "rule": rule, "max_sparsity_coupled": coupled}
        show_json({**plan.summary(), **found})
    else:
        typer.echo(
            f"{choice.method.name} on {net.name}: every layer keeps a neuron up to sparsity "
            f"{floor_sparsity(largest)}"
        )
        if coupled > largest:
            output.say(
                "That is by each layer's own mask, as in the paper. Tied layers keep what one of "
                f"them keeps: `ranp prune` goes up to {floor_sparsity(coupled)}."
            )
    sparsity = float(floor_sparsity(0.8 * largest))
    if scores is None:
        following = next_command(context, "prune", net.name, sparsity=sparsity)
    else:
        following = next_command(
            context, "plan", net.name, scores, sparsity=sparsity, **net.input_option
        )
    output.say(f"Next: {following}")
