"""The Python API: every function builds values from its arguments and calls the pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from ranp import pipeline
from ranp.errors import UsageError
from ranp.fitting import Fit, TrainingStep, fit_network
from ranp.fitting.machine import default_device
from ranp.graph import ChannelGraph, ExampleInput, build_graph
from ranp.pipeline import Result, Scoring
from ranp.pruning import (
    Choice,
    Chooser,
    Coupling,
    Feasibility,
    Floor,
    Forward,
    LossFunction,
    Per,
    Scores,
    ScoringWeights,
    find_method,
    make_forward,
)
from ranp.pruning.equations import check_sparsity
from ranp.resources.autocast import Precision
from ranp.resources.budgets import Amount, parse_budgets
from ranp.resources.training_memory import Device, Optimizer
from ranp.slimming import Init, Plan, check_init

__all__ = ["Fit", "Result", "fit", "plan", "prune", "score", "search", "trace"]


def trace(
    model: nn.Module,
    example_input: ExampleInput,
    *,
    protect: Iterable[str] = (),
    switches: Mapping[str, Iterable[Any]] | None = None,
) -> ChannelGraph:
    """Find out which channels of a model belong together (see `ranp.graph.build_graph`)."""
    return build_graph(model, example_input, protect=protect, switches=switches)


def score(
    model: nn.Module,
    loader: Iterable[Any] | None = None,
    loss: LossFunction | None = None,
    *,
    forward: Forward | None = None,
    methods: str | Iterable[str] = "ranp-f",
    batches: int | None = None,
    per: Per = "batch",
    weights: ScoringWeights = "fresh",
    example_input: ExampleInput | None = None,
    graph: ChannelGraph | None = None,
    seed: int = 0,
) -> Scores:
    """Scores every neuron in one pass over the data, at the cost of plain training steps.

    Args:
        model: Any model; it is given back as it was.
        loader: Yields batches: pairs (x, y), mappings, or what `forward` understands. Not needed
            for methods without data.
        loss: From output and target to a scalar.
        forward: From model and batch to a scalar, in the place of `loss`.
        methods: The method, or all the methods, that the scores must serve.
        batches: How many batches at the most; all if not given.
        per: "sample" scores the samples of a batch one by one, as the paper does: the choice
            settles with fewer batches, and does not depend on how large they are.
        weights: "fresh" scores the network at initialization, as the paper does; "given" scores
            its weights as they are.
        example_input: What to trace the model with; the first batch if not given.
        graph: The model's channel graph, if there is one already.
        seed: For fresh weights and dropout.
    """
    rows = [find_method(name) for name in ([methods] if isinstance(methods, str) else methods)]
    needs_data = any(row.needs_data for row in rows)
    if needs_data and loader is None:
        raise UsageError("give a loader: these methods score with data")
    traced = pipeline.trace(
        model, loader, example_input=example_input, forward=forward, graph=graph
    )
    run = make_forward(loss, forward) if needs_data else None
    return pipeline.score(traced, rows, Scoring(run, batches, per, weights, seed))


def plan(
    model: nn.Module,
    scores: Scores | None = None,
    *,
    sparsity: float,
    method: str = "ranp-f",
    lam: float | None = None,
    resource: str | Mapping[str, float] | None = None,
    coupling: Coupling = "paper",
    floor: Floor = 0,
    multiple: int = 1,
    seed: int = 0,
    example_input: ExampleInput | None = None,
    graph: ChannelGraph | None = None,
    protect: Iterable[str] = (),
) -> Plan:
    """Decides which neurons are kept, from scores alone.

    Args:
        model: The full model.
        scores: From `score`; not needed for "layerwise" and "random".
        sparsity: The share of neurons to remove (of weights, for "snip").
        method: A name out of `ranp.METHODS`.
        lam: lambda of Eq. 10; 11 if not given.
        resource: What Eq. 10 reweights by, if not what the method does: "flops", "memory",
            "params", or a cost for every layer.
        coupling: How channels that are tied by additions are decided: "paper", "sum", "max" or
            "mean".
        floor: Least number of neurons that every layer keeps, or "auto" for what the network
            needs: as many as there are classes before a head, and never one.
        multiple: Round channel counts up to a multiple of it.
        seed: For random selection.
        example_input: What to trace the model with, if there is no graph.
        graph: The model's channel graph, if there is one already.
        protect: Layers whose neurons must all stay; a graph that is given must know of them.

    Raises:
        InfeasibleError: A layer would lose all its neurons.
    """
    traced = _traced(model, example_input, graph, protect)
    choice = Choice.make(
        method,
        lam=lam,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        seed=seed,
    )
    chooser = Chooser(traced.model, traced.graph, choice, scores)
    return pipeline.make_plan(chooser, sparsity, traced.protect)


def search(
    model: nn.Module,
    scores: Scores | None = None,
    *,
    rule: Feasibility = "paper",
    method: str = "ranp-f",
    lam: float | None = None,
    resource: str | Mapping[str, float] | None = None,
    coupling: Coupling = "paper",
    floor: Floor = 0,
    multiple: int = 1,
    seed: int = 0,
    example_input: ExampleInput | None = None,
    graph: ChannelGraph | None = None,
    protect: Iterable[str] = (),
) -> float:
    """Algorithm 2: the largest sparsity at which every layer keeps a neuron, to 1e-4.

    With a `floor` no layer is ever emptied, so any sparsity will do.

    Args:
        model: The full model.
        scores: Scores from `score`; not needed for methods without scores.
        rule: "paper" asks each layer's own mask, as Algorithm 2 does, depthwise layers included;
            "coupled" asks the slim network, where tied layers keep what one of them keeps. `prune`
            refuses by "coupled".
        method: As for `plan`, and so are all others.
        lam: lambda of Eq. 10.
        resource: What Eq. 10 reweights by.
        coupling: How channels that are tied by additions are decided.
        floor: Least number of neurons that every layer keeps.
        multiple: Multiple that channel counts are rounded up to.
        seed: Seed of random selection.
        example_input: Input to trace the model with, if there is no graph.
        graph: The model's channel graph, if there is one already.
        protect: Layers whose neurons must all stay.
    """
    traced = _traced(model, example_input, graph, protect)
    choice = Choice.make(
        method,
        lam=lam,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        seed=seed,
    )
    return Chooser(traced.model, traced.graph, choice, scores).max_sparsity(rule)


def prune(
    model: nn.Module,
    loader: Iterable[Any] | None = None,
    loss: LossFunction | None = None,
    *,
    sparsity: float,
    method: str = "ranp-f",
    lam: float | None = None,
    resource: str | Mapping[str, float] | None = None,
    forward: Forward | None = None,
    example_input: ExampleInput | None = None,
    batches: int | Literal["auto"] | None = None,
    per: Per = "batch",
    weights: ScoringWeights = "fresh",
    init: Init = "fresh",
    seed: int = 0,
    coupling: Coupling = "paper",
    floor: Floor = 0,
    multiple: int = 1,
    protect: Iterable[str] = (),
    switches: Mapping[str, Iterable[Any]] | None = None,
) -> Result:
    """Makes a network smaller before it is trained.

    Traces the model, scores every neuron over the loader's batches, keeps the best, and builds the
    network that has only those. The model itself is not changed.

    Args:
        model: Any model.
        loader: Yields batches: pairs (x, y), mappings, or what `forward` understands. Not needed
            for methods without data.
        loss: From output and target to a scalar.
        sparsity: The share of neurons to remove (of weights, for "snip").
        method: A name out of `ranp.METHODS`.
        lam: lambda of Eq. 10; 11 if not given.
        resource: What Eq. 10 reweights by, if not what the method does: "flops", "memory",
            "params", or a cost for every layer.
        forward: From model and batch to a scalar, in the place of `loss`.
        example_input: What to trace the model with and count its costs at; the first batch's
            input, one sample of it, if not given. It may be larger than what is scored with.
        batches: How many batches to score at the most; all if not given. "auto" stops when the
            kept neurons no longer change.
        per: "sample" scores the samples of a batch one by one, as the paper does: the choice
            settles with fewer batches, and does not depend on how large they are.
        weights: "fresh" scores the network at initialization, as the paper does; "given" scores
            its weights as they are.
        init: Weights of the slim network: "fresh", "orthogonal", or "keep" the surviving ones.
        seed: For all random numbers.
        coupling: How channels that are tied by additions are decided.
        floor: Least number of neurons that every layer keeps, or "auto" for what the network
            needs: as many as there are classes before a head, and never one.
        multiple: Round channel counts up to a multiple of it.
        protect: Layers whose neurons must all stay.
        switches: Attributes that decide which layers the forward calls, and their values (see
            `ranp.graph.build_graph`): `{"decoder.deep_supervision": (True, False)}`.

    Returns:
        The slim model, the plan, the scores, and the costs before and after.
    """
    choice = Choice.make(
        method,
        lam=lam,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        seed=seed,
    )
    check_sparsity(sparsity)
    check_init(init)
    traced = pipeline.trace(
        model,
        loader,
        example_input=example_input,
        forward=forward,
        protect=protect,
        switches=switches,
    )
    run = make_forward(loss, forward) if choice.method.needs_data else None
    until_stable = batches == "auto"
    most = None if batches == "auto" else batches
    scoring = Scoring(run, most, per, weights, seed, until_stable)
    return pipeline.prune(traced, choice, sparsity, scoring, init=init)


def fit(
    model: nn.Module,
    loader: Iterable[Any] | None = None,
    loss: LossFunction | None = None,
    *,
    memory: Amount | None = None,
    flops: Amount | None = None,
    params: Amount | None = None,
    latency: Amount | None = None,
    budget: Mapping[str, Amount] | None = None,
    batch: int | None = None,
    input: tuple[int, ...] | None = None,
    optimizer: Optimizer = "adam",
    precision: Precision = "32",
    recompute: bool = False,
    device: Device | None = None,
    method: str = "ranp-f",
    lam: float | None = None,
    resource: str | Mapping[str, float] | None = None,
    forward: Forward | None = None,
    scores: Scores | None = None,
    batches: int | None = None,
    per: Per = "batch",
    weights: ScoringWeights = "fresh",
    init: Init = "fresh",
    seed: int = 0,
    coupling: Coupling = "paper",
    floor: Floor = 0,
    multiple: int = 1,
    protect: Iterable[str] = (),
    switches: Mapping[str, Iterable[Any]] | None = None,
) -> Fit:
    """Prunes a network just as much as its budgets ask for.

    Nothing is run that does not fit: the memory of a training step is predicted, and the full
    network is only scored, on what the loader yields. That may be smaller than what is trained
    with; give the size to train at as `input`.

    Budgets are numbers, or texts with a unit; "50%" is half of what the full network takes.

    Args:
        model: Any model; it is not changed.
        loader: Yields batches: pairs (x, y), mappings, or what `forward` understands. Not needed
            for methods without data, or with `scores`.
        loss: From output and target to a scalar.
        memory: What a training step may take at its peak: "8GiB", "500MB", or bytes.
        flops: What a forward pass of one sample may cost, by the paper's counting: "20GFLOPs".
        params: How many parameters there may be: "3M".
        latency: How long a training step may take on this machine, measured: "250ms", or seconds.
        budget: Budgets by resource, for those that have no keyword of their own (see
            `ranp.resources.budgets.RESOURCES`).
        batch: Samples per training step; the loader's if not given.
        input: Shape of one sample in training, without the batch: channels, then space; the
            loader's if not given.
        optimizer: "sgd", "momentum", "adam", "adamw" or "amsgrad".
        precision: "32", or mixed precision "bf16" or "16".
        recompute: Whether activations are checkpointed in training.
        device: What the memory is predicted for, "cpu" or "cuda"; CUDA if there is one.
        method: A name out of `ranp.METHODS`.
        lam: lambda of Eq. 10; 11 if not given.
        resource: What Eq. 10 reweights by, if not what the method does.
        forward: From model and batch to a scalar, in the place of `loss`.
        scores: From `ranp.score`, in the place of a loader.
        batches: How many batches to score at the most; all if not given.
        per: Whether whole batches are scored, or their samples one by one (see `ranp.score`);
            they are in any case where memory is short.
        weights: "fresh" scores the network at initialization; "given" its weights as they are.
        init: Weights of the slim network: "fresh", "orthogonal", or "keep" the surviving ones.
        seed: For all random numbers.
        coupling: How channels that are tied by additions are decided.
        floor: Least number of neurons that every layer keeps, or "auto" for what the network
            needs: as many as there are classes before a head, and never one.
        multiple: Round channel counts up to a multiple of it.
        protect: Layers whose neurons must all stay.
        switches: Attributes that decide which layers the forward calls, and their values (see
            `ranp.graph.build_graph`): `{"decoder.deep_supervision": (True, False)}`.

    Returns:
        What `ranp.prune` returns, with the sparsity, the budgets, what the networks cost, which
        budget binds, and the alternatives.

    Raises:
        DoesNotFit: Nothing that can be pruned keeps the budgets; an `InfeasibleError` that names
            the nearest figure and what would do.
    """
    budgets = parse_budgets(
        {"memory": memory, "flops": flops, "params": params, "latency": latency, **(budget or {})}
    )
    choice = Choice.make(
        method,
        lam=lam,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        seed=seed,
    )
    peeked = pipeline.peek(loader)
    shape = () if forward is not None else _input_shape(peeked)
    if not shape and (batch is None or input is None):
        raise UsageError("give batch and input: they say what is trained with")
    needs_data = choice.method.needs_data and scores is None
    if needs_data and loader is None:
        raise UsageError(f"{method} scores with data; give a loader, or scores")
    step = TrainingStep(
        batch=shape[0] if batch is None else batch,
        sample=shape[1:] if input is None else tuple(input),
        optimizer=optimizer,
        precision=precision,
        recompute=recompute,
        device=device or default_device(),
    )
    traced = pipeline.trace(
        model, peeked, example_input=(1, *step.sample), protect=protect, switches=switches
    )
    run = make_forward(loss, forward) if needs_data else None
    scoring = Scoring(run, batches, per, weights, seed, scores=scores)
    loss = loss if forward is None else None  # only the user's forward knows the target
    return fit_network(traced, budgets, step, choice, scoring, loss=loss, init=init)


def _input_shape(batches: pipeline.Batches) -> tuple[int, ...]:
    """Return the shape of the first batch's input; nothing without a batch."""
    x, _ = batches.pair
    if x is not None and not isinstance(x, Tensor):
        raise UsageError(
            "the batch's input is not a single tensor: give a forward(model, batch), and say "
            "what is trained with by batch and input"
        )
    return () if x is None else tuple(x.shape)


def _traced(
    model: nn.Module,
    example_input: ExampleInput | None,
    graph: ChannelGraph | None,
    protect: Iterable[str],
) -> pipeline.Traced:
    if graph is None and example_input is None:
        raise UsageError("give an example_input or a graph: the model must be traced")
    return pipeline.trace(model, example_input=example_input, graph=graph, protect=protect)
