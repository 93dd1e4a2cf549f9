"""Physical removal of channels: index-select every tensor along every dimension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ranp.errors import IntegrityError, check_one_of
from ranp.graph import (
    Alive,
    ChannelGraph,
    check,
    index_dims,
    named_tensors,
    rebuild_slim,
    shape_difference,
    tensor_shapes,
    unwrap,
)
from ranp.models.initialization import INITIALIZERS, direction_norm

Init = Literal["fresh", "orthogonal", "keep"]


def check_init(init: Init) -> None:
    """Refuse an unknown way to fill the slim network's weights."""
    check_one_of("init", init, get_args(Init))


def slim_model(
    model: nn.Module, graph: ChannelGraph, alive: Alive, *, init: Init = "keep", seed: int = 0
) -> nn.Module:
    """Build the smaller network. The given model is not changed.

    Device, dtype, train or eval mode and `requires_grad` carry over; so do hooks, as
    `copy.deepcopy` copies them. Before anything is handed out, the slim model is run on fake
    tensors and compared with the graph, operation by operation.

    Args:
        model: The full model the graph was built from, or another instance of it.
        graph: Its channel graph.
        alive: Which channel classes stay.
        init: "keep" copies the surviving weights; "fresh" (Glorot-normal, what the paper trains
            from) and "orthogonal" draw new ones with batch norm scales of one.
        seed: Seed of the new weights.
    """
    check_init(init)
    model = unwrap(model)
    check_same_shapes(model, graph)
    slim = rebuild_slim(
        model,
        graph,
        alive,
        lambda name, tensor: index_dims(tensor, _kept_slots(graph, alive, name)),
    )
    check(slim, graph, alive)
    if init == "keep":
        _keep_normed_weights(model, slim, graph, alive)
    else:
        generator = torch.Generator().manual_seed(seed)
        INITIALIZERS[init](slim, gamma="ones", generator=generator)
    return slim


def check_same_shapes(model: nn.Module, graph: ChannelGraph) -> None:
    """Refuse a model that is not the one the graph was built from."""
    difference = shape_difference(tensor_shapes(model), graph.tensor_shapes)
    if difference is not None:
        name, here, there = difference
        raise IntegrityError(
            f"this is another network: '{name}' is {here} here and {there} in the graph"
        )


def _kept_slots(graph: ChannelGraph, alive: Alive, name: str) -> tuple[Tensor | None, ...]:
    """Return the slots of each dimension of a tensor that stay; None where all do."""
    return tuple(
        None
        if classes is None or alive[classes].all()
        else torch.from_numpy(alive[classes].nonzero()[0])
        for classes in graph.tensors[name]
    )


@torch.no_grad()
def _keep_normed_weights(
    model: nn.Module, slim: nn.Module, graph: ChannelGraph, alive: Alive
) -> None:
    """Keep the effective weights of weight-normed layers: w = g v / |v|.

    The norm of v runs over the inputs, of which there are fewer now; g makes up for it.
    """
    full_tensors, slim_tensors = dict(named_tensors(model)), dict(named_tensors(slim))
    for g, v in _weight_norm_pairs(slim_tensors):
        slim_g = slim_tensors[g]
        before = direction_norm(full_tensors[v], full_tensors[g])
        kept = index_dims(before, _kept_slots(graph, alive, g))
        slim_g.mul_(direction_norm(slim_tensors[v], slim_g) / kept)


def _weight_norm_pairs(names: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Return the names of magnitude and direction of every weight norm, old style and new."""
    for name in names:
        for g, v in (("weight_g", "weight_v"), ("original0", "original1")):
            other = name.removesuffix(g) + v
            if name.endswith(g) and other in names:
                yield name, other
