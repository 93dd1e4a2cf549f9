"""Criteria of other papers, per neuron, for comparison: magnitude, SynFlow, GraSP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ranp.graph import ChannelGraph
from ranp.graph.surgery import mode
from ranp.pruning.batches import Forward, checked_loss
from ranp.pruning.mask_gradients import by_neuron


def leaf_weights(model: nn.Module, graph: ChannelGraph) -> dict[str, nn.Parameter]:
    """The layers' weights that are parameters."""
    parameters = dict(model.named_parameters())
    found = {n: parameters.get(n, parameters.get(f"{n}.weight")) for n in graph.layers}
    return {name: weight for name, weight in found.items() if weight is not None}


def magnitude(model: nn.Module, graph: ChannelGraph) -> dict[str, Tensor]:
    """The L1 norm of each neuron's weights (Li et al., 2017)."""
    weights = {name: weight.detach().abs() for name, weight in leaf_weights(model, graph).items()}
    return _per_neuron(model, graph, weights)


def grasp(model: nn.Module, graph: ChannelGraph, batch: Any, forward: Forward) -> dict[str, Tensor]:
    """GraSP (Wang et al., 2020): what a neuron adds to the flow of gradients.

    A weight's score is theta * (H g), the Hessian times the gradient; the largest are kept. It is
    summed over the neuron's weights.
    """
    weights = leaf_weights(model, graph)
    unique = list({id(w): w for w in weights.values()}.values())
    loss = checked_loss(forward(model, batch))
    gradients = torch.autograd.grad(loss, unique, create_graph=True, allow_unused=True)
    flow = sum(((g * g.detach()).sum() for g in gradients if g is not None), loss.new_zeros(()))
    products = torch.autograd.grad(flow, unique, allow_unused=True)
    found = {
        id(weight): weight.detach() * product
        for weight, product in zip(unique, products, strict=True)
        if product is not None
    }
    return _per_neuron(
        model, graph, {name: found[id(w)] for name, w in weights.items() if id(w) in found}
    )


def synflow(model: nn.Module, graph: ChannelGraph) -> dict[str, Tensor]:
    """SynFlow (Tanaka et al., 2020): gradient of the sum of outputs, all weights made positive.

    The input is all ones and the mode is eval, so no data are needed. One shot, not iterated.
    """
    weights = leaf_weights(model, graph)
    unique = list({id(w): w for w in weights.values()}.values())
    with mode(model, training=False), _absolute(model):
        args, kwargs = graph.inputs.materialize()
        ones = [_ones(leaf) for leaf in args], {k: _ones(v) for k, v in kwargs.items()}
        output = model(*ones[0], **ones[1])
        from ranp.graph.operation import tensors_in

        total = sum(
            (t.double().sum() for t in tensors_in(output) if t.is_floating_point()),
            torch.zeros((), dtype=torch.float64),
        )
        gradients = torch.autograd.grad(total, unique, allow_unused=True)
        found = {
            id(weight): (weight.detach() * gradient).abs()
            for weight, gradient in zip(unique, gradients, strict=True)
            if gradient is not None
        }
    return _per_neuron(
        model, graph, {name: found[id(w)] for name, w in weights.items() if id(w) in found}
    )


def _ones(value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return torch.ones_like(value) if floating else value


@contextmanager
def _absolute(model: nn.Module) -> Iterator[None]:
    """Makes all parameters positive, and sets them back."""
    before = [(p, p.data) for p in model.parameters()]
    try:
        for parameter, _ in before:
            parameter.data = parameter.data.abs()
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


def _per_neuron(
    model: nn.Module, graph: ChannelGraph, scores: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Sums per weight to sums per neuron; layers whose weight is computed get zeros."""
    modules = dict(model.named_modules())
    result = {}
    for name, layer in graph.layers.items():
        rows = by_neuron(scores[name], modules.get(name)) if name in scores else None
        if rows is None or len(rows) != len(layer):
            result[name] = torch.zeros(len(layer), dtype=torch.float64)
        else:
            result[name] = rows.float().sum(1).double().cpu()
    return result
