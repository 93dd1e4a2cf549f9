"""`ranp fit`: prune just as much as a budget asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ranp.cli._common import ensure_out, next_command, show_json, show_result
from ranp.cli._networks import Network, NetworkArgument, load_sample_network
from ranp.cli._options import (
    BudgetOptions,
    ChoiceOptions,
    Device,
    Optimizer,
    OutOption,
    Output,
    ScoresOption,
    ScoringOptions,
    grouped,
)

if TYPE_CHECKING:
    from ranp.fitting import TrainingStep
    from ranp.pipeline import Traced


@dataclass(frozen=True)
class StepOptions:
    """How a network is going to be trained."""

    batch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Samples per training step; by default your loader's batch size, or 1."
        ),
    ] = None
    input_shape: Annotated[
        str | None,
        typer.Option("--input", help="Shape of a sample in training, such as 4,128,128,128."),
    ] = None
    optimizer: Annotated[Optimizer, typer.Option(help="Optimizer in training.")] = "adam"
    precision: Annotated[
        Literal["32", "bf16", "16"],
        typer.Option(help="Precision in training; bf16 and 16 are mixed."),
    ] = "32"
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Train with activation checkpointing.")
    ] = False
    device: Annotated[
        Device | None, typer.Option(help="Device to predict memory for; cuda if available.")
    ] = None

    def step(self, batch: int, sample: tuple[int, ...]) -> TrainingStep:
        """Return the step with batches of a size, and samples of a shape."""
        from ranp.fitting import TrainingStep
        from ranp.fitting.machine import default_device

        given = {key: value for key, value in vars(self).items() if key != "input_shape"}
        given |= {"batch": batch, "device": self.device or default_device()}
        return TrainingStep(sample=sample, **given)


@grouped
def command(
    context: typer.Context,
    network: NetworkArgument,
    amounts: BudgetOptions,
    training: StepOptions,
    choosing: ChoiceOptions,
    scoring: ScoringOptions,
    output: Output,
    scores: ScoresOption = None,
    out: OutOption = None,
) -> None:
    """Prune a network just enough to keep its budgets.

    Memory is predicted, so nothing is allocated that does not fit. If scoring at the training size
    would be slow, smaller volumes are used; `--size` sets their edge.
    """
    from ranp.cli._scoring import ScoringListener, fit_without, keep_interrupted, open_source
    from ranp.fitting import DoesNotFit, choices_to_try, fit_network, loss_by_output

    budgets = amounts.budgets()
    ensure_out(out)
    own = (scoring.data, scoring.forward)
    net, batch = load_sample_network(network, training.input_shape, training.batch, *own)
    choices = choices_to_try(net.model, choosing.method, budgets, **choosing.settings(net))
    row = choices[0].method
    traced = net.trace(None, choosing.protect)
    scored_batch = 1
    if row.needs_data and scores is None:
        scoring, scored_batch = _scored_at(net, traced, scoring)
    source = open_source(net, [row], scoring, batch=scored_batch, seed=choosing.seed, scores=scores)
    step = training.step(batch or source.batch or 1, net.input_shape[1:])
    about = None
    if scores is None and row.needs_scores:
        smaller = net.spec is not None and scoring.size not in (None, net.input_shape[-1])
        about = f"{source.about} at an edge of {scoring.size}" if smaller else source.about
        output.say(f"Scoring {network} with {about}.")
    listener = ScoringListener(
        output,
        on_interrupt=keep_interrupted(
            context,
            out,
            lambda kept: next_command(
                context,
                "fit",
                network,
                scores=kept,
                out=out,
                batch=step.batch,
                without=fit_without(net),
            ),
            input_shape=",".join(map(str, net.input_shape)),
            batch=scored_batch,
            size=scoring.size,
        ),
    )
    try:
        with listener:
            result = fit_network(
                replace(traced, batches=source.batches),
                budgets,
                step,
                choices,
                source.scoring,
                default_input=loss_by_output,
                network=network,
                events=listener,
            )
    except DoesNotFit as error:
        if output.as_json:
            show_json({"network": network, **error.to_dict()})
        raise
    show_result(output, result, out, about, scored_with=about)


def _scored_at(net: Network, traced: Traced, scoring: ScoringOptions) -> tuple[ScoringOptions, int]:
    """Return how a known network is scored, smaller than it is trained, and how many at a time."""
    from ranp.cli._scoring import DEFAULT_SAMPLES, volume
    from ranp.fitting.scoring import scoring_size

    if net.spec is None or scoring.size is not None:
        return scoring, 1
    samples = scoring.samples or DEFAULT_SAMPLES
    size, scored_batch = scoring_size(traced, net.input_shape, partial(volume, net), samples)
    return replace(scoring, size=size), scored_batch
