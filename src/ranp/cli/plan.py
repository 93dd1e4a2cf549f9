"""`ranp plan`: from scores to a plan, at once and without data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ranp.cli._choosing import (
    CouplingOption,
    FloorOption,
    LambdaOption,
    MethodOption,
    MultipleOption,
    ResourceOption,
    SparsityOption,
    infeasible_as_json,
    make_chooser,
    plan_to_dict,
)
from ranp.cli._common import (
    InputOption,
    JsonOption,
    NetworkArgument,
    ProtectOption,
    QuietOption,
    load_network,
    say,
    show,
    show_json,
)
from ranp.cli._scoring import SeedOption


def command(
    network: NetworkArgument,
    scores: Annotated[Path, typer.Argument(metavar="SCORES", help="Made by `ranp score`.")],
    sparsity: SparsityOption,
    method: MethodOption = "ranp-f",
    lam: LambdaOption = None,
    resource: ResourceOption = None,
    coupling: CouplingOption = "paper",
    floor: FloorOption = 0,
    multiple: MultipleOption = 1,
    seed: SeedOption = 0,
    input_shape: InputOption = None,
    protect: ProtectOption = None,
    out: Annotated[Path, typer.Option("--out", help="Where the plan goes.")] = Path("plan.json"),
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Decide from scores which neurons are kept."""
    from ranp.files import ensure_directory
    from ranp.graph import build_graph
    from ranp.pipeline import make_plan
    from ranp.pruning import Scores, find_method
    from ranp.report.terminal import plan_summary

    ensure_directory(out.parent)
    row = find_method(method)
    loaded = Scores.load(scores)
    net = load_network(network, input_shape)
    chooser = make_chooser(
        net,
        build_graph(net.model, net.input_shape, protect=protect or ()),
        row,
        scores=loaded,
        lam=lam,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        seed=seed,
    )
    with infeasible_as_json(as_json, network, chooser, sparsity):
        made = make_plan(chooser, sparsity, protect or (), network)
    made.save(out)
    if as_json:
        show_json({**plan_to_dict(made), "plan": str(out)})
    else:
        show(plan_summary(made.method, made.costs, made.layers))
    say(quiet, f"Plan in {out}. Next: ranp.Plan.load({str(out)!r}).apply(model) in Python.")
