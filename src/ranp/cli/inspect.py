"""`ranp inspect`: which channels belong together, and which must stay, and why."""

from __future__ import annotations

from typing import Any

import typer

from ranp.cli._common import prune_hint, show, show_json
from ranp.cli._networks import load_network
from ranp.cli._options import InputOption, NetworkArgument, Output, ProtectOption, grouped


@grouped
def command(
    context: typer.Context,
    network: NetworkArgument,
    output: Output,
    input_shape: InputOption = None,
    protect: ProtectOption = None,
) -> None:
    """Show which layers are tied to which, and which channels cannot be removed and why."""
    from ranp.graph import build_graph
    from ranp.report.terminal import folded, numbers, table

    net = load_network(network, input_shape)
    graph = build_graph(net.model, net.input_shape, protect=protect or ())
    layers: list[dict[str, Any]] = []
    for name, layer in graph.layers.items():
        mine = set(layer.neurons.tolist())
        pinned = [c for c in mine if c in graph.pinned]
        layers.append(
            {
                "name": name,
                "neurons": len(layer),
                "removable": int(graph.removable[layer.neurons].sum()),
                "groups": layer.groups,
                "depthwise": layer.is_depthwise,
                "tied_to": [
                    other
                    for other, its in graph.layers.items()
                    if other != name and not mine.isdisjoint(its.neurons.tolist())
                ],
                "why_kept": sorted({graph.pinned[c] for c in pinned}),
            }
        )
    if output.as_json:
        removable = int(graph.removable.sum())
        show_json(
            {"network": network, "classes": removable, "layers": layers, "notes": graph.notes}
        )
        return
    result = table(
        *folded("layer"),
        *numbers("neurons", "removable"),
        *folded("tied to", "kept because"),
        title=f"{network}: {graph.neurons:,} neurons in {len(layers)} layers",
    )
    for row in layers:
        result.add_row(
            row["name"],
            f"{row['neurons']:,}",
            f"{row['removable']:,}",
            ", ".join(row["tied_to"]),
            "; ".join(row["why_kept"]),
        )
    show(result)
    for note in graph.notes:
        output.say(f"Found by trial: {note}")
    output.say(f"Next: {prune_hint(context, net)}")
