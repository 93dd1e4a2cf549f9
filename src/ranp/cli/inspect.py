"""`ranp inspect`: which channels belong together, and which must stay, and why."""

from __future__ import annotations

import typer

from ranp.cli._common import prune_hint
from ranp.cli._networks import LoaderOption, NetworkOptions
from ranp.cli._options import ForwardOption, Output, ProtectOption, grouped

_NAMES = 36
"""Names of layers up to this length are not broken; longer ones would leave too little room."""


@grouped
def command(
    context: typer.Context,
    named: NetworkOptions,
    output: Output,
    protect: ProtectOption = None,
    data: LoaderOption = None,
    forward: ForwardOption = None,
) -> None:
    """Show which layers are tied to which, and which channels cannot be removed and why."""
    from rich.table import Column

    from ranp.recording.topology import describe_layers
    from ranp.report.terminal import folded, numbers, table

    net = named.load(data, forward)
    graph = net.trace(None, protect).graph
    layers = describe_layers(graph)
    result = table(
        Column("layer", overflow="fold", no_wrap=max(map(len, graph.layers)) <= _NAMES),
        *numbers("neurons", "removable"),
        *folded("tied to", "kept because"),
        title=f"{net.name}: {graph.neurons:,} neurons in {len(layers)} layers",
    )
    for row in layers:
        result.add_row(
            row["name"],
            f"{row['neurons']:,}",
            f"{row['removable']:,}",
            ", ".join(row["tied_to"]),
            "; ".join(row["why_kept"]),
        )
    removable = int(graph.removable.sum())
    record = {"network": net.name, "classes": removable, "layers": layers, "notes": graph.notes}
    output.show(record, result)
    for note in graph.notes:
        output.say(f"Found by trial: {note}")
    output.say(f"Next: {prune_hint(context, net)}")
