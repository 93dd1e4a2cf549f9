"""The only orchestration: trace, score, choose, plan, slim.

The Python API, the commands, training and the experiments call these functions; a listener
(`Events`) follows what happens and can stop the scoring.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from ranp.errors import UsageError
from ranp.graph import Alive, ChannelGraph, ExampleInput, build_graph, protect_patterns, unwrap
from ranp.peeking import Batches, peek
from ranp.pruning import (
    Choice,
    Chooser,
    Forward,
    Method,
    Scores,
    StabilityStop,
    meet_budget,
)
from ranp.pruning import Scoring as Scoring
from ranp.pruning import score as score_neurons
from ranp.pruning.distributed import own_share
from ranp.pruning.early_stop import MAX_BATCHES
from ranp.pruning.equations import check_sparsity
from ranp.resources import Costs
from ranp.resources.budgets import Budget
from ranp.results import Result
from ranp.slimming import Init, Plan, check_init, mark, slim_model

logger = logging.getLogger("ranp")

Target = float | tuple[Budget, ...]
"""How much to prune: a sparsity, or budgets on what is counted."""


class Events:
    """Listens to a pipeline. The methods do nothing here: override those you need."""

    def on_start(self, done: int, total: int | None) -> None:
        """Called before the first batch: how many were scored before, of how many if known."""

    def on_batch(self, scores: Scores) -> bool:
        """Called after each scored batch; returns whether scoring should stop."""
        return False

    def on_scored(self, scores: Scores, verdict: str | None) -> None:
        """Called when scoring has ended; the verdict says how stable an "auto" choice is."""

    def on_trial(self, sparsity: float, figures: Mapping[str, float]) -> None:
        """Called for each network that was measured on the way to a budget."""


@dataclass(frozen=True)
class Traced:
    """A traced network, and what it is scored with.

    Attributes:
        model: The full network, unwrapped.
        graph: Its channel graph.
        batches: What it is scored with.
        protect: Layers whose neurons must all stay.
    """

    model: nn.Module
    graph: ChannelGraph
    batches: Batches = field(default_factory=Batches)
    protect: tuple[str, ...] = ()
    _counted: dict[bytes, Costs] = field(default_factory=dict, repr=False, compare=False)

    def chooser(self, choice: Choice, scores: Scores | None = None) -> Chooser:
        """Return a chooser; all choosers of a traced network share the counted costs."""
        return Chooser(self.model, self.graph, choice, scores, self._counted)


def trace(
    model: nn.Module,
    loader: Iterable[Any] | Batches | None = None,
    *,
    example_input: ExampleInput | None = None,
    forward: Forward | None = None,
    graph: ChannelGraph | None = None,
    protect: Iterable[str] = (),
    switches: Mapping[str, Iterable[Any]] | None = None,
) -> Traced:
    """Trace a network, once; the arguments are those of `ranp.prune`.

    Without an example input it is traced with one sample of the first batch's input. A graph that
    exists already is taken as it is, and must protect what must stay.
    """
    names = tuple(protect) if isinstance(protect, Iterable) else (protect,)
    if isinstance(protect, str) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"protect must be a list of layers' names, got {protect!r}")
    model, protect = unwrap(model), names
    batches = loader if isinstance(loader, Batches) else Batches(loader)
    if graph is not None:
        _check_protected(model, graph, protect)
        return Traced(model, graph, batches, protect)
    if example_input is None:
        batches = peek(batches.loader) if batches.first is None else batches
        example_input = batches.example(model, forward)
    graph = build_graph(model, example_input, protect=protect, switches=switches)
    return Traced(model, graph, batches, protect)


def _check_protected(model: nn.Module, graph: ChannelGraph, protect: tuple[str, ...]) -> None:
    patterns = protect_patterns(model, protect)
    for name, layer in graph.layers.items():
        wanted = any(fnmatchcase(name, pattern) for pattern in patterns)
        if wanted and graph.removable[layer.neurons].any():
            raise UsageError(f"the graph does not protect '{name}'; trace the model with protect")


def score(
    traced: Traced,
    methods: Iterable[Method],
    scoring: Scoring,
    events: Events | None = None,
    stop: StabilityStop | None = None,
) -> Scores:
    """Score every neuron of a network, in one pass over the data, for some methods."""
    methods, events = tuple(methods), events or Events()
    needs_data = any(method.needs_data for method in methods)
    if needs_data and traced.batches.loader is None:
        raise UsageError("give a loader: these methods score with data")
    if needs_data and scoring.forward is None:
        raise UsageError("give a loss(output, target), or a forward(model, batch) -> loss")

    loader = traced.batches.loader if needs_data else None
    most = scoring.batches
    if scoring.until_stable and stop is None:
        most = MAX_BATCHES if most is None else min(most, MAX_BATCHES)
    done = 0 if scoring.resume is None else scoring.resume.batches
    if loader is not None:
        events.on_start(*own_share(loader, done, most))

    def enough(scores: Scores) -> bool:
        interrupted = events.on_batch(scores)
        return (stop is not None and stop(scores)) or interrupted

    bounded = replace(scoring, batches=most)
    scores = score_neurons(traced.model, traced.graph, loader, bounded, methods, enough=enough)
    if stop is not None:
        scores = stop.annotate(scores)
    verdict = None if stop is None else stop.verdict
    logger.info("scored %d batches%s", scores.batches, "" if verdict is None else f". {verdict}")
    events.on_scored(scores, verdict)
    return scores


def make_chooser(
    traced: Traced,
    choice: Choice,
    scoring: Scoring,
    events: Events | None = None,
    *,
    sparsity: float | None = None,
) -> Chooser:
    """Return the chooser of a network, scored if its method needs scores.

    With `scoring.until_stable` it is the choice at `sparsity` that must be stable.
    """
    # Built first: invalid settings are refused before anything is scored.
    chooser = traced.chooser(choice, scoring.scores)
    if not choice.method.needs_scores or scoring.scores is not None:
        return chooser
    stop = None
    if scoring.until_stable and sparsity is not None:
        stop = StabilityStop(lambda scores: replace(chooser, scores=scores).choose(sparsity))
    return replace(chooser, scores=score(traced, [choice.method], scoring, events, stop))


def prune(
    traced: Traced,
    choice: Choice,
    target: Target,
    scoring: Scoring,
    *,
    init: Init = "fresh",
    network: str | None = None,
    events: Events | None = None,
) -> Result:
    """Score a traced network, choose its neurons at a sparsity, and build the slim network.

    With budgets, the sparsity is the smallest that keeps them (see `meet_budget`).

    Raises:
        InfeasibleError: A layer would lose all its neurons, or no sparsity keeps the budgets.
    """
    check_init(init)
    if isinstance(target, tuple):
        chooser = make_chooser(traced, choice, scoring, events)
        sparsity, alive = meet_budget(chooser, target)
        shortfall = None
    else:
        check_sparsity(target)
        chooser = make_chooser(traced, choice, scoring, events, sparsity=target)
        sparsity, alive = target, chooser.choose_feasible(target)
        shortfall = chooser.shortfall(target, alive)
    result = make_result(chooser, sparsity, traced.protect, network=network, init=init, alive=alive)
    return replace(result, shortfall=shortfall)


def make_result(
    chooser: Chooser,
    sparsity: float,
    protect: Iterable[str] = (),
    *,
    alive: Alive,
    network: str | None = None,
    init: Init = "fresh",
) -> Result:
    """Return plan and slim network of the channels that were chosen at a sparsity."""
    seed = chooser.choice.seed
    plan = make_plan(chooser, sparsity, protect, network, alive=alive)
    slim = slim_model(chooser.model, chooser.graph, alive, init=init, seed=seed)
    mark(slim, plan=plan.sha256)
    result = Result(slim, plan, chooser, chooser.costs(), chooser.costs(alive))
    for warning in result.warnings:
        logger.warning(warning)
    return result


def make_plan(
    chooser: Chooser,
    sparsity: float,
    protect: Iterable[str] = (),
    network: str | None = None,
    *,
    alive: Alive | None = None,
    **settings: Any,
) -> Plan:
    """Return the plan of a choice at a sparsity, with all it depends on.

    The living channels are chosen if not given; `settings` are kept among the plan's settings.

    Raises:
        InfeasibleError: A layer would lose all its neurons.
    """
    alive = chooser.choose_feasible(sparsity) if alive is None else alive
    settings = {"sparsity": sparsity, **chooser.choice.to_dict(), **settings}
    if chooser.scores is not None:
        settings["scoring"] = {**chooser.scores.settings, "batches": chooser.scores.batches}
    return Plan.make(
        chooser.graph,
        alive,
        method=chooser.choice.method.name,
        settings=settings,
        costs={"full": chooser.costs().totals(), "slim": chooser.costs(alive).totals()},
        protect=tuple(protect),
        network=network,
    )
