"""The pipeline in one screen: trace, score, choose, slim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from rich.console import RenderableType
from torch import Tensor, nn

from ranp.errors import UsageError
from ranp.files import ensure_directory
from ranp.graph import ChannelGraph, ExampleInput, build_graph, protect_patterns, unwrap
from ranp.pruning import (
    DEFAULT_LAMBDA,
    Chooser,
    Coupling,
    Forward,
    LossFunction,
    Per,
    Resource,
    Scores,
    ScoringWeights,
    Settled,
    find_method,
    make_forward,
)
from ranp.pruning import score as score_neurons
from ranp.pruning.batches import no_forward, split_pair
from ranp.pruning.select import check_sparsity
from ranp.recording import make_record, write_record
from ranp.report.page import write_report
from ranp.report.terminal import plain, plan_summary
from ranp.resources import Costs, count
from ranp.slimming import Init, Plan, check_init, save_weights, slim_model


@dataclass(frozen=True, repr=False)
class Result:
    """A pruned network and how it came about.

    Attributes:
        model: The slim network, ready to train.
        plan: Which neurons were kept; portable.
        chooser: What the plan was chosen by; chooses at any other sparsity too.
        before: Costs of the full network.
        after: Costs of the slim network.
    """

    model: nn.Module
    plan: Plan
    chooser: Chooser
    before: Costs
    after: Costs

    @property
    def scores(self) -> Scores | None:
        """To plan again without data; None for methods that need none."""
        return self.chooser.scores

    def save(
        self,
        directory: str | Path,
        *,
        command: str | None = None,
        data: str | None = None,
        measured: Mapping[str, Mapping[str, float]] | None = None,
        timelines: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Path:
        """Writes plan, weights, scores, record and report into a directory.

        Args:
            directory: Made if it is not there.
            command: The command line that makes it again, for the report.
            data: What the network was scored with, for the report.
            measured: Time and memory of training steps (see `ranp.recording.make_record`).
            timelines: Bytes alive in a training step (the same).

        Returns:
            Where the report is.
        """
        out = ensure_directory(directory)
        self.plan.save(out / "plan.json")
        save_weights(self.model, out / "weights.safetensors")
        names = ["plan.json", "weights.safetensors"]
        if self.scores is not None:
            self.scores.save(out / "scores.safetensors")
            names.append("scores.safetensors")
        record = make_record(
            self.chooser,
            self.plan,
            command=command,
            data=data,
            measured=measured,
            timelines=timelines,
            files={name: out / name for name in names},
        )
        write_record(out, record)
        return write_report(out)

    def __rich__(self) -> RenderableType:
        """The table of before and after, and the kept neurons of every layer."""
        return plan_summary(self.plan.method, self.plan.costs, self.plan.layers)

    def __str__(self) -> str:
        """The same as text."""
        return plain(self)

    __repr__ = __str__


def trace(
    model: nn.Module, example_input: ExampleInput, *, protect: Iterable[str] = ()
) -> ChannelGraph:
    """Finds out which channels of a model belong together (see `ranp.graph.build_graph`)."""
    return build_graph(model, example_input, protect=protect)


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
    if graph is None:
        loader, example_input = _peeked(loader, example_input, forward)
        graph = trace(model, example_input)
    return score_neurons(
        model,
        graph,
        loader if needs_data else None,
        make_forward(loss, forward) if needs_data else no_forward,
        statistics={statistic for row in rows for statistic in row.statistics},
        weights=weights,
        batches=batches,
        per=per,
        seed=seed,
    )


def plan(
    model: nn.Module,
    scores: Scores | None = None,
    *,
    sparsity: float,
    method: str = "ranp-f",
    lam: float | None = None,
    resource: Resource | Mapping[str, float] | None = None,
    coupling: Coupling = "paper",
    floor: int = 0,
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
        floor: Neurons that every layer keeps at least.
        multiple: Round channel counts up to a multiple of it.
        seed: For random selection.
        example_input: What to trace the model with, if there is no graph.
        graph: The model's channel graph, if there is one already.
        protect: Layers whose neurons must all stay; a graph that is given must know of them.

    Raises:
        InfeasibleError: A layer would lose all its neurons.
    """
    protect = tuple(protect)
    chooser = Chooser(
        unwrap(model),
        _graph(model, graph, example_input, protect),
        find_method(method),
        scores,
        lam=DEFAULT_LAMBDA if lam is None else lam,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        seed=seed,
    )
    return make_plan(chooser, sparsity, protect)


def search(
    model: nn.Module,
    scores: Scores | None = None,
    *,
    method: str = "ranp-f",
    lam: float | None = None,
    resource: Resource | Mapping[str, float] | None = None,
    coupling: Coupling = "paper",
    floor: int = 0,
    multiple: int = 1,
    seed: int = 0,
    example_input: ExampleInput | None = None,
    graph: ChannelGraph | None = None,
    protect: Iterable[str] = (),
) -> float:
    """Algorithm 2: the largest sparsity at which every layer keeps a neuron, to 1e-4.

    The arguments are those of `plan`. With a `floor` no layer is ever emptied, so any sparsity
    will do.
    """
    chooser = Chooser(
        unwrap(model),
        _graph(model, graph, example_input, tuple(protect)),
        find_method(method),
        scores,
        lam=DEFAULT_LAMBDA if lam is None else lam,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        seed=seed,
    )
    return chooser.max_sparsity()


def prune(
    model: nn.Module,
    loader: Iterable[Any] | None = None,
    loss: LossFunction | None = None,
    *,
    sparsity: float,
    method: str = "ranp-f",
    lam: float | None = None,
    resource: Resource | Mapping[str, float] | None = None,
    forward: Forward | None = None,
    example_input: ExampleInput | None = None,
    batches: int | Literal["auto"] | None = None,
    per: Per = "batch",
    weights: ScoringWeights = "fresh",
    init: Init = "fresh",
    seed: int = 0,
    coupling: Coupling = "paper",
    floor: int = 0,
    multiple: int = 1,
    protect: Iterable[str] = (),
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
        floor: Neurons that every layer keeps at least.
        multiple: Round channel counts up to a multiple of it.
        protect: Layers whose neurons must all stay.

    Returns:
        The slim model, the plan, the scores, and the costs before and after.
    """
    protect = tuple(protect)
    row = find_method(method)
    check_sparsity(sparsity)
    check_init(init)
    loader, example_input = _peeked(loader, example_input, forward)
    graph = trace(model, example_input, protect=protect)

    chooser = partial(
        Chooser,
        unwrap(model),
        graph,
        row,
        lam=DEFAULT_LAMBDA if lam is None else lam,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        seed=seed,
    )
    chooser()  # what makes no sense is refused before anything is scored
    scores = None
    if row.needs_scores:
        settled = Settled(lambda so_far: chooser(scores=so_far).choose(sparsity))
        scores = score_neurons(
            model,
            graph,
            loader if row.needs_data else None,
            make_forward(loss, forward) if row.needs_data else no_forward,
            statistics=row.statistics,
            weights=weights,
            batches=None if batches == "auto" else batches,
            per=per,
            enough=settled if batches == "auto" else None,
            seed=seed,
        )
        if batches == "auto":
            scores = settled.noted(scores)
    return make_result(chooser(scores=scores), sparsity, protect, init=init)


def make_result(
    chooser: Chooser,
    sparsity: float,
    protect: Iterable[str] = (),
    *,
    network: str | None = None,
    init: Init = "fresh",
) -> Result:
    """Plan and slim network of a choice at a sparsity.

    Raises:
        InfeasibleError: A layer would lose all its neurons.
    """
    model, graph = chooser.model, chooser.graph
    made = make_plan(chooser, sparsity, protect, network)
    alive = made.alive(graph)
    return Result(
        model=slim_model(model, graph, alive, init=init, seed=chooser.seed),
        plan=made,
        chooser=chooser,
        before=count(model, graph),
        after=count(model, graph, alive),
    )


def _peeked(
    loader: Iterable[Any] | None, example_input: ExampleInput | None, forward: Forward | None
) -> tuple[Iterable[Any], ExampleInput]:
    """The loader, and one sample of its first batch where no example is given.

    An iterator that can be run through only once gets its first batch back.
    """
    loader = () if loader is None else loader
    if example_input is not None:
        return loader, example_input
    batches = iter(loader)
    batch = next(batches, None)
    if batch is None:
        raise UsageError("give an example_input: there is no batch to take it from")
    if forward is not None and not _is_pair(batch):
        raise UsageError("give an example_input: only your forward knows what a batch is made of")
    x, _ = split_pair(batch)
    if not isinstance(x, Tensor):
        raise UsageError("give an example_input: the batch's input is not a single tensor")
    # A shape stands for floating-point numbers, on the model's device.
    example = (1, *x.shape[1:]) if x.is_floating_point() else x[:1]
    return (chain([batch], batches) if batches is loader else loader), example


def _is_pair(batch: Any) -> bool:
    try:
        split_pair(batch)
    except UsageError:
        return False
    return True


def _graph(
    model: nn.Module,
    graph: ChannelGraph | None,
    example_input: ExampleInput | None,
    protect: tuple[str, ...],
) -> ChannelGraph:
    """The graph that is given, if it protects what must be, or a new one."""
    if graph is None:
        if example_input is None:
            raise UsageError("give an example_input or a graph: the model must be traced")
        return trace(model, example_input, protect=protect)
    patterns = protect_patterns(unwrap(model), protect)
    for name, layer in graph.layers.items():
        asked_for = any(fnmatchcase(name, pattern) for pattern in patterns)
        if asked_for and graph.removable[layer.neurons].any():
            raise UsageError(
                f"the graph that is given does not protect '{name}': trace the model with protect"
            )
    return graph


def make_plan(
    chooser: Chooser, sparsity: float, protect: Iterable[str] = (), network: str | None = None
) -> Plan:
    """The plan of a choice at a sparsity, with all it depends on.

    Raises:
        InfeasibleError: A layer would lose all its neurons.
    """
    alive = chooser.require(sparsity)
    resource = dict(chooser.resource) if isinstance(chooser.resource, Mapping) else chooser.resource
    settings: dict[str, Any] = {
        "sparsity": sparsity,
        "lambda": chooser.lam,
        "resource": resource,
        "coupling": chooser.coupling,
        "floor": chooser.floor,
        "multiple": chooser.multiple,
        "seed": chooser.seed,
    }
    if chooser.scores is not None:
        settings["scoring"] = {**chooser.scores.settings, "batches": chooser.scores.batches}
    return Plan.make(
        chooser.graph,
        alive,
        method=chooser.method.name,
        settings=settings,
        costs={
            "full": count(chooser.model, chooser.graph).totals(),
            "slim": count(chooser.model, chooser.graph, alive).totals(),
        },
        protect=tuple(protect),
        network=network,
    )
