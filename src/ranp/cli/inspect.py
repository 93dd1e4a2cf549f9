"""`ranp inspect`: which channels belong together, and which must stay, and why."""

from __future__ import annotations

from typing import Any

import typer

from ranp.cli._common import load_network, prune_hint, say, show, show_json
from ranp.cli._options import InputOption, JsonOption, NetworkArgument, ProtectOption, QuietOption


def command(
    context: typer.Context,
    network: NetworkArgument,
    input_shape: InputOption = None,
    protect: ProtectOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show which layers are tied to which, and which channels cannot be removed and why."""
    from ranp.graph import build_graph
    from ranp.report.terminal import table

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
    if as_json:
        removable = int(graph.removable.sum())
        show_json(
            {"network": network, "classes": removable, "layers": layers, "notes": graph.notes}
        )
        return
    result = table(f"{network}: {graph.neurons:,} neurons in {len(layers)} layers")
    result.add_column("layer", overflow="fold")
    result.add_column("neurons", justify="right")
    result.add_column("removable", justify="right")
    result.add_column("tied to", overflow="fold")
    result.add_column("kept because", overflow="fold")
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
        say(quiet, f"Found by trial: {note}")
    say(quiet, f"Next: {prune_hint(context, net)}")
