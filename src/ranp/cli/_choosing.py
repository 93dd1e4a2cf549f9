"""Options of commands that choose neurons, and what they print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from ranp.pruning import Chooser
    from ranp.slimming import Plan

MethodOption = Annotated[str, typer.Option(help="See `ranp methods`.")]
SparsityOption = Annotated[
    float, typer.Option(help="Share of neurons to remove (of weights, for snip).")
]
LambdaOption = Annotated[
    float | None,
    typer.Option("--lambda", help="How much cost matters (Eq. 10); by default the paper's."),
]
ResourceOption = Annotated[
    Literal["flops", "memory", "params", "latency"] | None,
    typer.Option(help="What to reweight by instead of the method's own."),
]
CouplingOption = Annotated[
    Literal["paper", "sum", "max", "mean"],
    typer.Option(help="How channels tied by additions are decided."),
]
FloorOption = Annotated[int, typer.Option(min=0, help="Neurons that every layer keeps at least.")]
MultipleOption = Annotated[
    int, typer.Option(min=1, help="Round channel counts up to a multiple of it.")
]


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """What commands print of a plan as JSON."""
    return {
        **{name: dict(totals) for name, totals in plan.costs.items()},
        "method": plan.method,
        "sparsity": plan.settings["sparsity"],
        "feasible": True,
        "layers": [
            {"name": name, "neurons": layer.neurons, "kept": len(layer.kept)}
            for name, layer in plan.layers.items()
        ],
        "settings": dict(plan.settings),
    }


def infeasible_to_dict(chooser: Chooser, sparsity: float) -> dict[str, Any]:
    """What commands print as JSON when the sparsity cannot be reached."""
    return {
        "method": chooser.method.name,
        "sparsity": sparsity,
        "feasible": False,
        "max_sparsity": chooser.max_sparsity(),
    }
