"""`ranp prune`: score, plan and slim, all at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ranp.cli._common import ensure_out, is_given, next_command, show_result
from ranp.cli._networks import NetworkOptions
from ranp.cli._options import (
    BatchOption,
    BudgetOptions,
    ChoiceOptions,
    OutOption,
    Output,
    ScoringOptions,
    grouped,
)


@grouped
def command(
    context: typer.Context,
    named: NetworkOptions,
    amounts: BudgetOptions,
    choosing: ChoiceOptions,
    scoring: ScoringOptions,
    output: Output,
    sparsity: Annotated[
        float | None, typer.Option(help="Share of neurons to remove, instead of budgets.")
    ] = None,
    batch: BatchOption = 1,
    auto: Annotated[
        bool,
        typer.Option(
            "--auto",
            help="Stop scoring when the kept neurons no longer change; after at most "
            "16 batches, or --samples.",
        ),
    ] = False,
    out: OutOption = None,
) -> None:
    """Prune a network before training, and print its costs before and after.

    Set one or more budgets: --flops 10%, --params 3M, --memory 8GiB (the peak of a training step
    with --batch; `ranp fit` has more options for the training step).
    """
    from ranp.cli._scoring import ScoringListener, fit_without, keep_interrupted, open_source
    from ranp.fitting import TrainingStep, choice_for, loss_by_output, prune_network
    from ranp.fitting.machine import default_device
    from ranp.pruning.early_stop import MAX_BATCHES

    target = amounts.target(sparsity)
    ensure_out(out)
    net = named.load(scoring.data, scoring.forward)
    method = choosing.method or "ranp-f"
    choice = choice_for(net.model, target, method, **choosing.settings(net))
    source = open_source(
        net,
        [choice.method],
        scoring,
        batch=batch,
        seed=choosing.seed,
        batches=MAX_BATCHES if auto else None,
    )
    if choice.method.needs_scores:
        output.say(f"Scoring {net.name} with {source.about}.")
    together = batch if is_given(context, "batch") else source.batch or batch

    def go_on(kept: Path) -> str:
        if sparsity is not None:
            plan = kept.with_name("plan.json")
            return next_command(context, "plan", net.name, kept, out=plan, **net.input_option)
        settings = {"method": choice.method.name, "coupling": choice.coupling, "batch": together}
        settings |= {"floor": choice.floor, "scores": kept, "out": out}
        return next_command(context, "fit", net.name, without=fit_without(net), **settings)

    listener = ScoringListener(
        output,
        keep=None if out is None else out / "scores.safetensors",
        on_interrupt=keep_interrupted(
            context,
            out,
            go_on,
            samples=source.scoring.batches and source.scoring.batches * (source.batch or batch),
        ),
    )
    with output.infeasible_as_json(net.name, choice.method.name, sparsity), listener:
        result = prune_network(
            net.trace(source.batches, choosing.protect),
            target,
            TrainingStep(batch=together, sample=net.input_shape[1:], device=default_device()),
            choice,
            replace(source.scoring, until_stable=auto),
            default_input=loss_by_output,
            network=net.name,
            events=listener,
        )
    about = source.about if choice.method.needs_scores else None
    show_result(output, result, out, about)
