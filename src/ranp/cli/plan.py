"""`ranp plan`: from scores to a plan, at once and without data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ranp.cli._networks import LoaderOption, NetworkOptions
from ranp.cli._options import ChoiceOptions, ForwardOption, Output, grouped


@grouped
def command(
    named: NetworkOptions,
    scores: Annotated[Path, typer.Argument(metavar="SCORES", help="Made by `ranp score`.")],
    sparsity: Annotated[
        float, typer.Option(help="Share of neurons to remove (of weights, for snip).")
    ],
    choosing: ChoiceOptions,
    output: Output,
    out: Annotated[Path, typer.Option("--out", help="File for the plan.")] = Path("plan.json"),
    data: LoaderOption = None,
    forward: ForwardOption = None,
) -> None:
    """Decide which neurons to keep, from scores."""
    from ranp.files import ensure_directory
    from ranp.pipeline import Scoring, make_chooser, make_plan
    from ranp.pruning import Scores
    from ranp.pruning.allocation import thin_layers
    from ranp.report.terminal import plan_summary

    ensure_directory(out.parent)
    loaded = Scores.load(scores)
    net = named.load(data, forward)
    choice = choosing.choice(net)
    traced = net.trace(None, choosing.protect)
    with output.infeasible_as_json(net.name, choice.method.name, sparsity):
        chooser = make_chooser(traced, choice, Scoring(scores=loaded))
        plan = make_plan(chooser, sparsity, traced.protect, net.name)
    plan.save(out)
    warnings = thin_layers(chooser.graph, plan.alive(chooser.graph))
    summary = {**plan.summary(), "warnings": warnings, "plan": str(out)}
    output.show(summary, plan_summary(plan.method, plan.costs, plan.layers))
    for warning in warnings:
        output.say(warning)
    output.say(f"Plan in {out}. Next: ranp.Plan.load({str(out)!r}).apply(model) in Python.")
