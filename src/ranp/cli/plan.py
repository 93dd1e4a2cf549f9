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
    input_shape: InputOption = None,
    protect: ProtectOption = None,
    out: Annotated[Path, typer.Option("--out", help="Where the plan goes.")] = Path("plan.json"),
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Decide from scores which neurons are kept."""
    from dataclasses import replace

    import ranp
    from ranp.files import ensure_directory
    from ranp.report.terminal import plan_summary

    ensure_directory(out.parent)
    loaded = ranp.Scores.load(scores)
    net = load_network(network, input_shape)
    made = ranp.plan(
        net.model,
        loaded,
        sparsity=sparsity,
        method=method,
        lam=lam if lam is not None or net.spec is None else net.spec.reweighting,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        example_input=net.input_shape,
        protect=protect or (),
    )
    replace(made, network=network).save(out)
    if as_json:
        show_json({**plan_to_dict(made), "plan": str(out)})
    else:
        show(plan_summary(made.method, made.costs, made.layers))
    say(quiet, f"Plan in {out}. Next: ranp.Plan.load({str(out)!r}).apply(model) in Python.")
