"""`ranp profile`: what a network costs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ranp.cli._common import prune_hint
from ranp.cli._networks import LoaderOption, NetworkOptions
from ranp.cli._options import Optimizer, Output, grouped


@grouped
def command(
    context: typer.Context,
    named: NetworkOptions,
    output: Output,
    convention: Annotated[
        Literal["paper", "appendix", "macs"], typer.Option(help="How operations are counted.")
    ] = "paper",
    training: Annotated[
        bool, typer.Option("--training", help="Also predict the memory of a training step.")
    ] = False,
    optimizer: Annotated[Optimizer, typer.Option(help="Optimizer of the training step.")] = "adam",
    data: LoaderOption = None,
) -> None:
    """Count the FLOPs, parameters and memory of a network, layer by layer."""
    from rich.console import Group, RenderableType

    from ranp.graph import build_graph
    from ranp.report.terminal import costs_table, memory_table, totals_table
    from ranp.resources import count, predict_training_memory

    net = named.load(data)
    graph = build_graph(net.model, net.input_shape)
    costs = count(net.model, graph, convention=convention)
    result = {"network": net.name, "input": list(net.input_shape), **costs.to_dict()}
    title = f"{net.name}, input {' x '.join(map(str, net.input_shape))}"
    parts: list[RenderableType] = [
        costs_table(result["layers"]),
        "",
        totals_table({"total": costs.totals()}, title),
    ]
    if training:
        memory = predict_training_memory(net.model, net.input_shape, optimizer=optimizer).totals()
        result["training_memory"] = memory
        parts += ["", memory_table(memory, optimizer)]
    output.show(result, Group(*parts))
    if costs.not_counted:
        output.say(f"Operations not counted ({convention}): {', '.join(costs.not_counted)}")
    output.say(f"Next: {prune_hint(context, net)}")
