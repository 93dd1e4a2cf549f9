"""The Python API: every function builds values from its arguments and calls the pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import nn

from ranp import pipeline
from ranp.errors import UsageError
from ranp.fitting import (
    Fit,
    TrainingStep,
    choice_for,
    choices_to_try,
    fit_network,
    prune_network,
)
from ranp.fitting.machine import default_device
from ranp.fitting.target import example_at
from ranp.graph import ChannelGraph, ExampleInput, build_graph, split_batch, unwrap
from ranp.peeking import peek
from ranp.progress import ScoringBar
from ranp.pruning import (
    Choice,
    Coupling,
    Feasibility,
    Floor,
    Forward,
    LossFunction,
    Per,
    Scores,
    Scoring,
    ScoringWeights,
    find_method,
    make_forward,
)
from ranp.pruning.equations import check_sparsity
from ranp.resources.autocast import Precision
from ranp.resources.budgets import Amount, parse_budgets
from ranp.resources.training_memory import Device, Optimizer
from ranp.results import Result
from ranp.slimming import Init, Plan, check_init
from ranp.trials.candidates import THIN
from ranp.trials.loops import Train
from ranp.trials.race import RACE, race_choice

Batches = int | Literal["auto"] | None

__all__ = ["Fit", "Result", "fit", "plan", "prune", "score", "search", "trace"]


trace = build_graph


def score(
    model: nn.Module,
    loader: Iterable[Any] | None = None,
    loss: LossFunction | None = None,
    *,
    forward: Forward | None = None,
    methods: str | Iterable[str] = "ranp-f",
    batches: Batches = "auto",
    per: Per = "batch",
    weights: ScoringWeights = "fresh",
    example_input: ExampleInput | None = None,
    graph: ChannelGraph | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Scores:
    """Score every neuron in one pass over the data, at the cost of plain training steps.

    Args:
        model: Any model; it is not changed.
        loader: Iterable of batches: pairs (x, y), mappings, or whatever `forward` accepts. Not
            needed for methods that use no data.
        loss: `loss(output, target)` -> scalar tensor.
        forward: `forward(model, batch)` -> scalar tensor, instead of `loss`.
        methods: Method or methods to score for.
        batches: Maximum number of batches to score; "auto" for at most 16, None for all of them.
        per: "batch", or "sample" to score the samples of a batch one by one, as the paper does.
            The choice then settles with fewer batches and does not depend on the batch size.
        weights: "fresh" to score the network at initialization, as the paper does; "given" to
            score the model's own weights.
        example_input: Input to trace the model with; taken from the first batch if None.
        graph: Channel graph of the model, if you have traced it already.
        seed: Seed of fresh weights and dropout.
        progress: Whether to show a progress bar in a terminal or notebook.

    Returns:
        Scores for all of `methods`, at any sparsity and lambda.
    """
    rows = [find_method(name) for name in ([methods] if isinstance(methods, str) else methods)]
    needs_data = any(row.needs_data for row in rows)
    if needs_data and loader is None:
        raise UsageError("give a loader: these methods score with data")
    traced = pipeline.trace(
        model, loader, example_input=example_input, forward=forward, graph=graph
    )
    settings: dict[str, Any] = {"per": per, "weights": weights, "seed": seed}
    scoring = _scoring(loss, forward, batches, needs_data=needs_data, **settings)
    with ScoringBar(progress) as events:
        return pipeline.score(traced, rows, scoring, events)


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
    """Decide which neurons to keep, from scores alone.

    Args:
        model: The full model.
        scores: Scores of the model; not needed for methods such as "layerwise" and "random".
        sparsity: Share of neurons to remove, between 0 and 1 (of weights, for "snip").
        method: Name of a method in `ranp.METHODS`.
        lam: lambda of Eq. 10; 11 if None.
        resource: Resource to reweight by in Eq. 10 instead of the method's own: "flops", "memory",
            "params", "latency", or a mapping from layer to cost.
        coupling: Rule for channels that are tied by additions: "paper", "sum", "max" or "mean".
        floor: Minimum number of neurons in every layer, or "auto" for what the network needs:
            before a head, as many as there are classes, or a quarter of the channels it reads if
            that is less; everywhere, at least two.
        multiple: Round channel counts up to a multiple of this number.
        seed: Seed of random selection.
        example_input: Input to trace the model with, if you pass no graph.
        graph: Channel graph of the model, if you have traced it already.
        protect: Names or patterns of layers that keep all neurons; a graph that you pass must
            have been traced with the same ones.

    Raises:
        InfeasibleError: A layer would lose all its neurons.
    """
    options: dict[str, Any] = {"lam": lam, "resource": resource, "multiple": multiple, "seed": seed}
    choice = Choice.make(method, coupling=coupling, floor=floor, **options)
    traced = pipeline.trace(model, example_input=example_input, graph=graph, protect=protect)
    return pipeline.make_plan(traced.chooser(choice, scores), sparsity, traced.protect)


def search(  # noqa: D417
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
    """Return the largest sparsity at which every layer keeps a neuron (Algorithm 2), to 1e-4.

    With a `floor` no layer becomes empty, so any sparsity is feasible.

    Args:
        model: The full model.
        scores: Scores of the model; not needed for methods without scores.
        rule: "paper" checks the mask of each layer, including depthwise ones, as Algorithm 2 does;
            "coupled" checks the slim network, in which tied layers keep what one of them keeps.
            `prune` uses "coupled".
        method, lam, resource, coupling, floor, multiple, seed, example_input, graph, protect:
            As in `plan`.
    """
    options: dict[str, Any] = {"lam": lam, "resource": resource, "multiple": multiple, "seed": seed}
    choice = Choice.make(method, coupling=coupling, floor=floor, **options)
    traced = pipeline.trace(model, example_input=example_input, graph=graph, protect=protect)
    return traced.chooser(choice, scores).max_sparsity(rule)


def prune(
    model: nn.Module,
    loader: Iterable[Any] | None = None,
    loss: LossFunction | None = None,
    *,
    sparsity: float | None = None,
    flops: Amount | None = None,
    memory: Amount | None = None,
    params: Amount | None = None,
    method: str = "ranp-f",
    lam: float | None = None,
    resource: str | Mapping[str, float] | None = None,
    forward: Forward | None = None,
    example_input: ExampleInput | None = None,
    batches: Batches = "auto",
    per: Per = "batch",
    weights: ScoringWeights = "fresh",
    init: Init = "fresh",
    seed: int = 0,
    coupling: Coupling | None = None,
    floor: Floor | None = None,
    multiple: int = 1,
    protect: Iterable[str] = (),
    switches: Mapping[str, Iterable[Any]] | None = None,
    train: Train | None = None,
    length: int | None = None,
    progress: bool = True,
) -> Result:
    """Prune a network before training.

    Traces the model, scores every neuron over the loader's batches, keeps the best ones, and builds
    a smaller network of the same class.

    Set budgets (`flops`, `memory`, `params`), and the network is pruned just enough to keep all of
    them; or set a `sparsity`. Prefer budgets: half of the neurons can be a tenth of the FLOPs.

    Args:
        model: Any model; it is not changed.
        loader: Iterable of batches: pairs (x, y), mappings, or whatever `forward` accepts. Not
            needed for methods that use no data.
        loss: `loss(output, target)` -> scalar tensor.
        sparsity: Share of neurons to remove, between 0 and 1 (of weights, for "snip"), instead of
            budgets.
        flops: Budget for a forward pass of one sample, such as "20GFLOPs" or "10%" of the full
            network's.
        memory: Budget for the predicted peak memory of a training step with the loader's batches
            and Adam, such as "8GiB" or "50%". For other batches, optimizers or precisions, use
            `ranp.fit`.
        params: Budget for the number of parameters, such as "3M" or "10%".
        method: Name of a method in `ranp.METHODS`; or "race" for the winner of a race on your own
            data (see `ranp.race`), which needs one budget, `train` and `length`.
        lam: lambda of Eq. 10; 11 if None.
        resource: Resource to reweight by in Eq. 10 instead of the method's own (see `plan`).
        forward: `forward(model, batch)` -> scalar tensor, instead of `loss`.
        example_input: Input to trace the model with and to count costs at; it may be larger than
            the batches for scoring. If None, one sample of the first batch, or of what `forward`
            calls the model with.
        batches: Maximum number of batches to score; None for all of them. "auto" stops when the
            kept neurons no longer change, after at most 16 batches.
        per: "batch" to score whole batches, or "sample" to score samples one by one (see `score`).
        weights: "fresh" to score the network at initialization, as the paper does; "given" to
            score the model's own weights.
        init: Weights of the slim network: "fresh", "orthogonal", or "keep" to copy those of the
            neurons that are kept.
        seed: Seed of all random numbers.
        coupling: Rule for channels that are tied by additions (see `plan`). If None, "paper"; or
            "mean" to reach budgets in networks with group, instance or layer norm.
        floor: Minimum number of neurons in every layer, or "auto" for what the network needs (see
            `plan`). If None, 0; or "auto" where `coupling` is None and "mean" was chosen.
        multiple: Round channel counts up to a multiple of this number.
        protect: Names or patterns of layers that keep all neurons.
        switches: Attributes that decide which layers the forward pass calls, and their values (see
            `ranp.graph.build_graph`): `{"decoder.deep_supervision": (True, False)}`.
        train: For "race": `train(model, seed)` trains a network and yields a metric at every
            check-in.
        length: For "race": number of check-ins of a whole training.
        progress: Whether to show a progress bar in a terminal or notebook, and to print the
            progress of a race.

    Returns:
        The slim model, the plan, the scores, and the costs before and after. With a memory budget,
        what `ranp.fit` returns.

    Raises:
        InfeasibleError: A layer would lose all its neurons, or no pruned network keeps the budgets.
    """
    target = _target(sparsity, {"memory": memory, "flops": flops, "params": params})
    racing = _race_arguments(method, train, length)
    row = THIN if racing else method
    options: dict[str, Any] = {"lam": lam, "resource": resource, "multiple": multiple, "seed": seed}
    choice = choice_for(unwrap(model), target, row, coupling=coupling, floor=floor, **options)
    if choice.method.needs_data and loader is None:
        raise UsageError(f"{method} scores with data; give a loader")
    check_init(init)
    traced = pipeline.trace(
        model,
        loader if memory is None else peek(loader),
        example_input=example_input,
        forward=forward,
        protect=protect,
        switches=switches,
    )
    scored: dict[str, Any] = {"per": per, "weights": weights, "seed": seed}
    scoring = _scoring(loss, forward, batches, needs_data=choice.method.needs_data, **scored)
    step = None
    if memory is not None:
        traced_at = traced.graph.inputs.shapes[0]
        batch, *_ = traced.batches.input_shape(forward) or traced_at
        step = TrainingStep(batch=batch, sample=traced_at[1:], device=default_device())
    if racing:
        tell = print if progress else pipeline.logger.info
        choice, scoring = race_choice(traced, *racing, target, choice, scoring, step, tell)
    with ScoringBar(progress) as events:
        return prune_network(traced, target, step, choice, scoring, init=init, events=events)


def _race_arguments(
    method: str | None, train: Train | None, length: int | None
) -> tuple[Train, int] | None:
    """Return the training function and length of a race; None if no race is asked for."""
    if method != RACE:
        if train is not None or length is not None:
            raise UsageError(f"train and length are for method='race', got method={method!r}")
        return None
    if train is None or length is None:
        raise UsageError("method='race' trains on your own data; give train and length")
    return train, length


def _target(sparsity: float | None, amounts: Mapping[str, Amount | None]) -> pipeline.Target:
    """Return how much to prune: a sparsity or budgets, whichever is given."""
    given = [name for name, amount in amounts.items() if amount is not None]
    if sparsity is not None and given:
        raise UsageError(f"give budgets or a sparsity, got {given[0]} and sparsity")
    if sparsity is None and not given:
        raise UsageError("say how much to prune, such as flops='10%', memory='50%', params='3M'")
    if sparsity is not None:
        check_sparsity(sparsity)
        return sparsity
    return parse_budgets(amounts)


def _scoring(
    loss: LossFunction | None,
    forward: Forward | None,
    batches: Batches,
    *,
    needs_data: bool,
    **settings: Any,
) -> Scoring:
    """Return how to score, as the public arguments say; `settings` are fields of `Scoring`."""
    given = loss is not None or forward is not None
    return Scoring(
        make_forward(loss, forward) if needs_data or given else None,
        batches=None if batches == "auto" else batches,
        until_stable=batches == "auto",
        **settings,
    )


def fit(  # noqa: D417
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
    method: str | None = None,
    lam: float | None = None,
    resource: str | Mapping[str, float] | None = None,
    forward: Forward | None = None,
    scores: Scores | None = None,
    batches: Batches = "auto",
    per: Per = "batch",
    weights: ScoringWeights = "fresh",
    init: Init = "fresh",
    seed: int = 0,
    coupling: Coupling | None = None,
    floor: Floor | None = None,
    multiple: int = 1,
    protect: Iterable[str] = (),
    switches: Mapping[str, Iterable[Any]] | None = None,
    train: Train | None = None,
    length: int | None = None,
    progress: bool = True,
) -> Fit:
    """Prune a network just enough to keep its budgets.

    The memory of a training step is predicted, so nothing is run that does not fit. The full
    network is only scored, on the loader's batches. These may be smaller than those you train
    with; pass the size you train at as `input`.

    Budgets are numbers, or strings with a unit. "50%" is half of what the full network takes
    (for memory on CUDA: half of what remains without the context, which no pruning changes).

    Args:
        model: Any model; it is not changed.
        loader: Iterable of batches: pairs (x, y), mappings, or whatever `forward` accepts. Not
            needed for methods that use no data, or with `scores`.
        loss: `loss(output, target)` -> scalar tensor.
        memory: Budget for the peak memory of a training step: "8GiB", "500MB", or bytes.
        flops: Budget for a forward pass of one sample, by the paper's counting: "20GFLOPs".
        params: Budget for the number of parameters: "3M".
        latency: Budget for the time of a training step, measured on this machine: "250ms", or
            seconds.
        budget: Budgets by resource, for resources without a keyword (see
            `ranp.resources.budgets.RESOURCES`).
        batch: Samples per training step; the loader's batch size if None.
        input: Shape of a sample in training, channels first, with or without a batch dimension;
            the loader's if None.
        optimizer: "sgd", "momentum", "adam", "adamw" or "amsgrad".
        precision: "32", or mixed precision "bf16" or "16".
        recompute: Whether you train with activation checkpointing.
        device: Device to predict memory for, "cpu" or "cuda"; if None, "cuda" if available.
        forward: `forward(model, batch)` -> scalar tensor, instead of `loss`.
        scores: Scores of the model, instead of a loader.
        method: As in `prune`. If None, RANP by the resource (FLOPs, memory, parameters, or none)
            that keeps the most neurons within the budgets.
        coupling: As in `prune`. If None, "paper"; if `method` is None too, for networks with group,
            instance or layer norm, "mean" with the floor "auto" if that prunes less.
        floor: As in `prune`. If None, the one that goes with the coupling.
        per: As in `prune`. If memory is short, samples are scored one by one in any case.
        batches: As in `score`.
        lam, resource, weights, init, seed, multiple, protect, switches, train, length, progress:
            As in `prune`.

    Returns:
        What `ranp.prune` returns, and the sparsity, the budgets, the costs of both networks, the
        budget that binds, and the alternatives.

    Raises:
        DoesNotFit: No pruned network keeps the budgets. It is an `InfeasibleError` that says how
            close one can get and what would help.
    """
    budgets = parse_budgets(
        {"memory": memory, "flops": flops, "params": params, "latency": latency, **(budget or {})}
    )
    racing = _race_arguments(method, train, length)
    row = THIN if racing else method
    model = unwrap(model)
    options: dict[str, Any] = {"lam": lam, "resource": resource, "multiple": multiple, "seed": seed}
    choices = choices_to_try(model, row, budgets, coupling=coupling, floor=floor, **options)
    peeked = peek(loader)
    shape = peeked.input_shape(forward)
    if loader is not None and peeked.first is None:
        raise UsageError("the loader is empty: it yields no batch")
    if input is not None:
        batch, input = split_batch(model, input, batch, like=shape)
    if not shape and (batch is None or input is None):
        raise UsageError("give batch and input, or a loader to take them from")
    needs_data = choices[0].method.needs_data and scores is None
    if needs_data and loader is None:
        name = choices[0].method.name
        raise UsageError(f"{name} scores with data; give a loader, or scores")
    step = TrainingStep(
        batch=shape[0] if batch is None else batch,
        sample=shape[1:] if input is None else input,
        optimizer=optimizer,
        precision=precision,
        recompute=recompute,
        device=device or default_device(),
    )
    example = example_at(model, forward, peeked.first, step)
    traced = pipeline.trace(
        model, peeked, example_input=example, protect=protect, switches=switches
    )
    scored: dict[str, Any] = {"per": per, "weights": weights, "seed": seed, "scores": scores}
    scoring = _scoring(loss, forward, batches, needs_data=needs_data, **scored)
    if racing:
        tell = print if progress else pipeline.logger.info
        winner, scoring = race_choice(traced, *racing, budgets, choices[0], scoring, step, tell)
        choices = (winner,)
    with ScoringBar(progress) as events:
        return fit_network(traced, budgets, step, choices, scoring, init=init, events=events)
