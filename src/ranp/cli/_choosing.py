"""Options of commands that choose neurons, and what they print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ranp.cli._common import Network, show_json
from ranp.errors import InfeasibleError

if TYPE_CHECKING:
    from ranp.graph import ChannelGraph
    from ranp.pruning import Choice, Chooser, Method, Scores
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


def _floor(text: str | int) -> int | str:
    """Return a floor as `Choice` takes it; the rest is refused there."""
    return int(text) if str(text).lstrip("-").isdigit() else str(text)


FloorOption = Annotated[
    Any,
    typer.Option(
        parser=_floor,
        metavar="INTEGER|auto",
        help="Least number of neurons that every layer keeps; auto takes what the network needs.",
    ),
]
MultipleOption = Annotated[
    int, typer.Option(min=1, help="Round channel counts up to a multiple of it.")
]


def make_choice(network: Network, method: str, *, lam: float | None, **options: Any) -> Choice:
    """What the options of a command choose by; lambda is the network's own if it is not given."""
    from ranp.pruning import Choice

    if lam is None and network.spec is not None:
        lam = network.spec.lam
    return Choice.make(method, lam=lam, **options)


def make_chooser(
    network: Network,
    graph: ChannelGraph,
    method: Method,
    *,
    scores: Scores | None = None,
    **options: Any,
) -> Chooser:
    """What the options of a command choose by.

    It can be made before there are scores: then wrong options are refused before the network is
    scored.
    """
    from ranp.pruning import Chooser

    return Chooser(network.model, graph, make_choice(network, method.name, **options), scores)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """What commands print of a plan as JSON."""
    return {
        "network": plan.network,
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


@contextmanager
def infeasible_as_json(
    wanted: bool, network: str, chooser: Chooser, sparsity: float
) -> Iterator[None]:
    """Prints as JSON, if wanted, that a sparsity cannot be reached, and how far one can go."""
    try:
        yield
    except InfeasibleError:
        if wanted:
            show_json(
                {
                    "network": network,
                    "method": chooser.choice.method.name,
                    "sparsity": sparsity,
                    "feasible": False,
                    "max_sparsity": _max_sparsity(chooser),
                }
            )
        raise


def _max_sparsity(chooser: Chooser) -> float | None:
    """How far one can go; None where a layer keeps no neuron at any sparsity."""
    try:
        return chooser.max_sparsity()
    except InfeasibleError:
        return None
