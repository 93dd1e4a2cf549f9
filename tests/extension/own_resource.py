"""A resource of one's own, that layers cost and networks are budgeted by."""

from ranp import register_resource
from ranp.resources.budgets import Resource


def joules(layer) -> float:
    return float(layer.flops + 10 * layer.activations)


register_resource(
    Resource(
        "energy",
        "joules of a forward pass, made up",
        {"": 1.0, "j": 1.0, "kj": 1e3},
        "5kJ",
        lambda value: f"{value / 1e3:.2f} kJ",
        layer_costs=lambda model, graph, costs: {x.name: joules(x) for x in costs.layers},
        total=lambda costs: sum(joules(x) for x in costs.layers),
    )
)
