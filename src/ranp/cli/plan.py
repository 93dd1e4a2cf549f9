"""`ranp plan`: from scores to a plan, at once and without data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ranp.cli._networks import load_network
from ranp.cli._options import (
    ChoiceOptions,
    InputOption,
    NetworkArgument,
    Output,
    SparsityOption,
    grouped,
)


@grouped
def command(
    network: NetworkArgument,
    scores: Annotated[Path, typer.Argument(metavar="SCORES", help="Made by `ranp score`.")],
    sparsity: SparsityOption,
    choosing: ChoiceOptions,
    output: Output,
    input_shape: InputOption = None,
    out: Annotated[Path, typer.Option("--out", help="Where the plan goes.")] = Path("plan.json"),
) -> None:
    """Decide from scores which neurons are kept."""
    from ranp.files import ensure_directory
    from ranp.pipeline import Scoring, make_chooser, make_plan, trace
    from ranp.pruning import Scores
    from ranp.report.terminal import plan_summary

    ensure_directory(out.parent)
    loaded = Scores.load(scores)
    net = load_network(network, input_shape)
    choice = choosing.choice(net)
    traced = trace(net.model, example_input=net.input_shape, protect=choosing.protect or ())
    with output.infeasible_as_json(network, choice.method.name, sparsity):
        made = make_plan(
            make_chooser(traced, choice, Scoring(scores=loaded)),
            sparsity,
            traced.protect,
            network,
        )
    made.save(out)
    summary = {**made.summary(), "plan": str(out)}
    output.show(summary, plan_summary(made.method, made.costs, made.layers))
    output.say(f"Plan in {out}. Next: ranp.Plan.load({str(out)!r}).apply(model) in Python.")
