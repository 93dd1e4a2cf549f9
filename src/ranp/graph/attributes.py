"""Channel counts that modules keep as plain attributes: they follow the channels."""

from __future__ import annotations

from typing import Any

from torch import nn

from ranp.graph.channel_graph import Alive, ChannelGraph, slim_shape

_ATTRIBUTES = {
    "in_channels": "inputs",
    "input_channels": "inputs",
    "out_channels": "outputs",
    "output_channels": "outputs",
}
"""Attributes of custom modules, and the tensors whose channels they count."""


def update_channel_counts(slim: nn.Module, graph: ChannelGraph, alive: Alive) -> None:
    """Bring the channel counts that a slim model's own modules store in line with its channels.

    An attribute follows if it holds, in the full network, the number of channels that enter or
    leave its module, or a list of them for several tensors. What two calls disagree on stays.
    """
    found: dict[tuple[str, str], list[Any]] = {}
    for call in (call for label_pass in graph.passes.values() for call in label_pass.channels):
        stored = vars(slim.get_submodule(call.name))
        for name in _ATTRIBUTES.keys() & stored.keys():
            value, extent = stored[name], getattr(call, _ATTRIBUTES[name])
            full, counts = slim_shape(extent, graph.all_alive()), slim_shape(extent, alive)
            if isinstance(value, int) and full[:1] == (value,):
                found.setdefault((call.name, name), []).append(counts[0])
            elif isinstance(value, (list, tuple)) and tuple(value) == full:
                found.setdefault((call.name, name), []).append(type(value)(counts))
    for (path, name), values in found.items():
        if all(value == values[0] for value in values):
            setattr(slim.get_submodule(path), name, values[0])
