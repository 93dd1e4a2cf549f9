"""`ranp fit`: prune just as much as a budget asks for."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ranp.cli._choosing import (
    CouplingOption,
    FloorOption,
    LambdaOption,
    MethodOption,
    MultipleOption,
    ResourceOption,
    make_choice,
    plan_to_dict,
)
from ranp.cli._common import (
    JsonOption,
    Network,
    NetworkArgument,
    ProtectOption,
    QuietOption,
    load_network,
    next_command,
    parse_shape,
    say,
    say_where,
    show,
    show_json,
)
from ranp.cli._scoring import (
    SCORING,
    DataOption,
    Interruption,
    LossOption,
    PerOption,
    SamplesOption,
    SeedOption,
    SizeOption,
    WeightsOption,
    cross_entropy,
    listening,
    make_scoring,
    open_source,
    peek_at,
    stop_interrupted,
)
from ranp.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from ranp.fitting import DoesNotFit, TrainingStep
    from ranp.graph import ChannelGraph
    from ranp.pruning import Scores
    from ranp.resources.training_memory import Loss

_SMALLEST_EDGE = 24
"""Of volumes that are generated to score with; smaller ones show nothing."""
_SCORING_GFLOPS = 200.0
"""What scoring may cost at the size that is chosen for it, in forward and backward passes."""


def command(
    context: typer.Context,
    network: NetworkArgument,
    memory: Annotated[
        str | None, typer.Option(help="What a training step may take: 8GiB, 500MB, 50%.")
    ] = None,
    flops: Annotated[
        str | None, typer.Option(help="What a forward pass of a sample may cost: 20GFLOPs, 10%.")
    ] = None,
    params: Annotated[
        str | None, typer.Option(help="How many parameters there may be: 3M, 10%.")
    ] = None,
    latency: Annotated[
        str | None, typer.Option(help="What a training step may take, measured here: 250ms, 50%.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples per training step.")] = 1,
    input_shape: Annotated[
        str | None,
        typer.Option("--input", help="Shape of a sample in training, such as 4,128,128,128."),
    ] = None,
    optimizer: Annotated[
        Literal["sgd", "momentum", "adam", "adamw", "amsgrad"], typer.Option(help="In training.")
    ] = "adam",
    precision: Annotated[
        Literal["32", "bf16", "16"], typer.Option(help="In training; bf16 and 16 are mixed.")
    ] = "32",
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Train with activation checkpointing.")
    ] = False,
    device: Annotated[
        Literal["cpu", "cuda"] | None,
        typer.Option(help="What memory is predicted for; CUDA if there is one here."),
    ] = None,
    method: MethodOption = "ranp-f",
    lam: LambdaOption = None,
    resource: ResourceOption = None,
    coupling: CouplingOption = "paper",
    floor: FloorOption = 0,
    multiple: MultipleOption = 1,
    scores: Annotated[
        Path | None, typer.Option(help="Made by `ranp score`; scored anew if not given.")
    ] = None,
    data: DataOption = None,
    loss: LossOption = None,
    samples: SamplesOption = 8,
    per: PerOption = "batch",
    size: SizeOption = None,
    weights: WeightsOption = "fresh",
    seed: SeedOption = 0,
    protect: ProtectOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Directory for plan, scores, fresh weights and report."),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Prune a network just as much as it takes to keep a budget.

    Memory is predicted, nothing is allocated that does not fit. Scoring uses smaller volumes than
    training where those would be slow; `--size` sets their edge.
    """
    from ranp.files import ensure_directory
    from ranp.fitting import DoesNotFit, TrainingStep, fit_network
    from ranp.fitting.machine import default_device
    from ranp.pipeline import Scoring, trace
    from ranp.pruning import Scores
    from ranp.report.page import write_report
    from ranp.resources.budgets import describe, parse_budgets

    budgets = parse_budgets(
        {"memory": memory, "flops": flops, "params": params, "latency": latency}
    )
    if out is not None:
        ensure_directory(out)
    net = _network(network, input_shape)
    choice = make_choice(
        net,
        method,
        lam=lam,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        seed=seed,
    )
    step = TrainingStep(
        batch=batch,
        sample=net.input_shape[1:],
        optimizer=optimizer,
        precision=precision,
        recompute=recompute,
        device=device or default_device(),
    )
    traced = trace(net.model, example_input=net.input_shape, protect=protect or ())
    source, together = None, 1
    scoring = Scoring(scores=Scores.load(scores) if scores else None)
    if choice.method.needs_scores and scores is None:
        size, together = _scoring_size(net, traced.graph, samples, size)
        source = open_source(net, choice.method, data, loss, samples, together, size, seed)
        say(quiet, f"Scoring {network} with {source.about}{_edge(net, size)}.")
        scoring = make_scoring(source, weights=weights, per=per, seed=seed)
        traced = replace(traced, batches=peek_at(source))

    def scored(found: Scores, verdict: str | None, interruption: Interruption) -> None:
        if interruption.number:
            stop_interrupted(
                context,
                interruption,
                found,
                out,
                lambda kept: next_command(
                    context, "fit", network, scores=kept, out=out, without=set(SCORING) - {"batch"}
                ),
                input_shape=",".join(map(str, net.input_shape)),
                batch=together,
                size=size,
                per=found.settings["per"],
            )

    def tell(sparsity: float, figures: Mapping[str, float]) -> None:
        took = describe("latency", figures["latency"])
        say(quiet, f"  Measured: {took} at sparsity {sparsity:.4f}.")

    try:
        with listening(source, quiet, scored, tell) as events:
            result = fit_network(
                traced,
                budgets,
                step,
                choice,
                scoring,
                loss=None if source is None else source.loss,
                default_loss=_by_output,
                network=network,
                events=events,
            )
    except DoesNotFit as error:
        if as_json:
            show_json(_infeasible(error, network))
        raise
    about = None if source is None else f"{source.about}{_edge(net, size)}"
    report = None
    if out is not None:
        command_line = shlex.join(["ranp", *sys.argv[1:]])
        report = write_report(result.save(out, command=command_line, data=about))
    if as_json:
        show_json({**plan_to_dict(result.plan), **result.to_dict(), "scored_with": about})
    else:
        show(result)
    say_where(quiet, out, report)


def _network(name: str, input_text: str | None) -> Network:
    """The network, traced with one sample of the shape that it is trained with."""
    from ranp.models import find_network, network_names

    sample = parse_shape(input_text)
    if sample is None:
        return load_network(name, None)
    if name in network_names() and len(sample) == len(find_network(name).input_shape):
        without = ",".join(map(str, sample[1:]))
        raise UsageError(
            f"--input is the shape of a sample: write {without}, and --batch {sample[0]}"
        )
    return load_network(name, ",".join(map(str, (1, *sample))))


def _scoring_size(
    net: Network, graph: ChannelGraph, samples: int, size: int | None
) -> tuple[int | None, int]:
    """The edge of the volumes to score with, and how many go together.

    The largest of the training size, its half, its quarter and so on with which scoring is quick
    and fits this machine. Two samples go together where a single one leaves batch norm a single
    voxel.
    """
    from ranp.datasets import find_dataset
    from ranp.fitting.machine import fits
    from ranp.resources import count, predict_training_memory

    if net.spec is None or size is not None:
        return size, 1
    device = next(net.model.parameters()).device
    _, channels, frames, *space = net.input_shape
    edge = space[-1]
    dataset = find_dataset(net.spec.dataset)
    gflops = 3 * samples * count(net.model, graph).gflops
    best = (edge, 1)
    while edge >= _SMALLEST_EDGE or edge == space[-1]:
        for together in (1, 2):
            try:
                memory = predict_training_memory(
                    net.model,
                    (together, channels, *dataset.volume(edge, frames)),
                    optimizer="momentum",
                )
            except (RuntimeError, ValueError):
                continue  # too small for this network
            best = (edge, together)
            scale = (edge / space[-1]) ** (2 if dataset.frames else 3)
            if gflops * scale <= _SCORING_GFLOPS and fits(memory.peak, device):
                return best
            break
        edge //= 2
    return best


def _edge(net: Network, size: int | None) -> str:
    """What there is to say about the size, where it is not that of training."""
    if net.spec is None or size is None or size == net.input_shape[-1]:
        return ""
    return f" at an edge of {size}"


def _by_output(step: TrainingStep) -> Loss:
    """Cross-entropy with a label for every voxel of the output."""

    def loss(output: Tensor) -> Tensor:
        return cross_entropy(output, output.new_zeros(output[:, 0].shape).long())

    return loss


def _infeasible(error: DoesNotFit, network: str) -> dict[str, Any]:
    """What is printed as JSON when nothing keeps the budgets."""
    return {
        "network": network,
        "feasible": False,
        "nearest": {
            "sparsity": error.nearest.sparsity,
            "figures": dict(error.nearest.figures),
            "binding": error.nearest.binding,
        },
        "alternatives": [each.to_dict() for each in error.alternatives],
    }
