"""The user's own network brought to a budget, before anything is trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ranp.errors import InfeasibleError, UsageError
from ranp.fitting import TrainingStep
from ranp.fitting.fit import choice_for, fit_choices
from ranp.fitting.target import StepInputAt, batch_like, no_loss
from ranp.graph import Alive, ExampleInput
from ranp.peeking import Batches, peek
from ranp.pipeline import Scoring, Traced, make_plan, score, trace
from ranp.pruning import (
    Choice,
    Chooser,
    Forward,
    LossFunction,
    Method,
    Scores,
    make_forward,
)
from ranp.pruning.allocation import single_neuron_layers
from ranp.pruning.scores import fingerprint
from ranp.pruning.search import meet_budget
from ranp.resources.budgets import Budget
from ranp.slimming import Plan
from ranp.trials.loops import Build, Loop, Train, training_name
from ranp.trials.store import Cell, Store
from ranp.user_code import blame

_SCORES_FILE = "scores.safetensors"
_KEPT_APART = ("batches", "until_stable", "per", "weights")
"""Settings of scoring that make other scores."""


ScoreWith = tuple[Iterable[Any], LossFunction] | Iterable[Any]
"""Loader and loss to score with; the loader alone beside a `forward(model, batch)`."""


@dataclass(frozen=True)
class Allocation:
    """A network at a budget.

    Attributes:
        chooser: What it was chosen by: method, settings and scores.
        plan: Which neurons are kept.
        alive: The living channels.
        about: Totals, deviation from the budget and layers with a single neuron, as a comparison
            shows them.
    """

    chooser: Chooser
    plan: Plan
    alive: Alive
    about: Mapping[str, Any]

    @property
    def widths(self) -> dict[str, int]:
        """Neurons of every layer."""
        return {name: len(layer.kept) for name, layer in self.plan.layers.items()}


@dataclass(frozen=True)
class Unreachable:
    """A method that cannot reach a budget.

    Attributes:
        reason: Why, and which settings would help.
        about: Costs of the nearest network.
    """

    reason: str
    about: Mapping[str, Any]


@dataclass(frozen=True)
class Allocator:
    """Brings methods to budgets on the network of a loop.

    Attributes:
        loop: The user's network and training.
        loader: Yields batches to score with; None if all methods do without.
        scoring: How the network is scored; each choice has its own seed.
        settings: Keywords of `ranp.prune` that a choice is made of, such as `coupling` and `floor`.
        step: How the network is trained, for budgets on what a training step takes.
        input_at: What such a step is given; its loss takes memory too.
    """

    loop: Loop
    loader: Iterable[Any] | None = None
    scoring: Scoring = field(default_factory=Scoring)
    settings: Mapping[str, Any] = field(default_factory=dict)
    step: TrainingStep | None = None
    input_at: StepInputAt = no_loss

    @property
    def has_data(self) -> bool:
        """Whether there are batches and a loss to score with."""
        return self.loader is not None and self.scoring.forward is not None

    def full(self) -> Allocation:
        """Return the full network."""
        chooser = self.chooser(Choice.make("thin"))
        alive = self.loop.graph.all_alive()
        about = describe_network(chooser, alive, None, None)
        return Allocation(chooser, make_plan(chooser, 0.0, alive=alive), alive, about)

    def choice(self, method: str | Method, budget: Budget, seed: int) -> Choice:
        """Return the choice that `prune` makes by a method at a budget."""
        return choice_for(self.loop.model, (budget,), method, seed=seed, **self.settings)

    def allocate(self, choice: Choice, budget: Budget) -> Allocation | Unreachable:
        """Return the network of a choice at a budget.

        Methods that rank neurons keep to their ranking, also where the budget is missed by it.
        """
        chooser = self.chooser(choice)
        try:
            sparsity, alive = self._meet_budget(chooser, budget)
        except InfeasibleError as error:
            return Unreachable(str(error), describe_nearest(chooser, budget))
        plan = make_plan(chooser, sparsity, alive=alive)
        about = describe_network(chooser, alive, sparsity, budget)
        return Allocation(chooser, plan, alive, about)

    def _meet_budget(self, chooser: Chooser, budget: Budget) -> tuple[float, Alive]:
        """Return sparsity and channels at a budget, counted or, for a training step, predicted."""
        if budget.is_counted:
            return meet_budget(chooser, [budget])
        if self.step is None:
            raise UsageError(
                f"{budget.resource} is of a training step, which is not known here; give a budget "
                "of flops or params, or race by ranp.fit(..., method='race')"
            )
        _, fitted = fit_choices([chooser], self.step, (budget,), input_at=self.input_at)
        return fitted.sparsity, fitted.alive

    def chooser(self, choice: Choice) -> Chooser:
        """Return the chooser of a choice on the network, scored if the method needs it."""
        loop = self.loop
        scores = self._scores(choice) if choice.method.needs_scores else None
        return Chooser(loop.model, loop.graph, choice, scores)

    def _scores(self, choice: Choice) -> Scores:
        """Score the network, or read the scores that another method of the seed left."""
        loop, method, scoring = self.loop, choice.method, self.scoring
        if scoring.scores is not None:
            return scoring.scores
        if method.needs_data and not self.has_data:
            raise UsageError(
                f"{method.name} scores with data; give score_with=(loader, loss), which is --data "
                "and --loss of a command, or methods without data such as thin and power:-0.25"
            )
        statistics = sorted(statistic.name for statistic in method.statistics)
        wanted = {
            "kind": "loop scores",
            "network": fingerprint(loop.graph),
            "train": loop.name if method.needs_data else None,
            "statistics": statistics,
            "seed": choice.seed,
            "scoring": {key: getattr(scoring, key) for key in _KEPT_APART},
        }

        traced = Traced(loop.model, loop.graph, Batches(self.loader))
        seeded = replace(scoring, seed=choice.seed)
        if scoring.weights == "given":  # the model's own, of which a cell says nothing
            return score(traced, [method], seeded)
        return require_scores(loop.store, wanted, lambda: score(traced, [method], seeded))


def make_allocator(
    build: Build,
    train: Train,
    store: Store,
    *,
    score_with: ScoreWith | None = None,
    forward: Forward | None = None,
    example_input: ExampleInput | None = None,
    name: str | None = None,
    step: TrainingStep | None = None,
    **settings: Any,
) -> Allocator:
    """Return what brings a network of the user's to budgets, and knows how it is trained."""
    loader, scored_by = _to_score(score_with, forward)
    batches = peek(loader)
    with blame("the network's factory"):
        model = build()
    traced = trace(model, batches, example_input=example_input, forward=forward)
    loop = Loop(store, traced.model, traced.graph, train, name=name or training_name(train))
    scoring = Scoring(scored_by, until_stable=True)  # bounded: a loader may have no end
    allocator = Allocator(loop, batches.loader, scoring, settings, step)
    if step is None or scored_by is None:
        return allocator
    return replace(allocator, input_at=batch_like(scored_by, batches.first))


def _to_score(
    score_with: ScoreWith | None, forward: Forward | None
) -> tuple[Iterable[Any] | None, Forward | None]:
    """Return the loader to score with, and the function from model and batch to loss."""
    if score_with is None:
        if forward is not None:
            raise UsageError("forward must have batches to score with; give score_with=loader")
        return None, None
    pair = score_with if isinstance(score_with, tuple) and len(score_with) == 2 else None
    if forward is not None:
        if pair is not None and callable(pair[1]):
            raise UsageError("forward stands for the loss; give score_with=loader alone")
        return score_with, make_forward(None, forward)
    if pair is None:
        raise UsageError(
            "score_with must be (loader, loss), or a loader with forward=forward(model, batch), "
            f"got {type(score_with).__name__}"
        )
    loader, loss = pair
    return loader, make_forward(loss, None)


def describe_network(
    chooser: Chooser, alive: Alive, sparsity: float | None, budget: Budget | None
) -> dict[str, Any]:
    """Return what is known of a slim network before it is trained, as plain values."""
    costs, full = chooser.costs(alive), chooser.costs()
    deviation = None
    if budget is not None and budget.is_counted:
        deviation = budget.total(costs) / budget.absolute(budget.total(full)).limit - 1
    return {
        **costs.totals(),
        "parameters": costs.parameters,
        "deviation": deviation,
        "sparsity": sparsity,
        "one_neuron": single_neuron_layers(chooser.graph, alive),
        "full": {**full.totals(), "parameters": full.parameters},
    }


def describe_nearest(chooser: Chooser, budget: Budget | None) -> dict[str, Any]:
    """Return the same of the smallest network that a method comes down to."""
    sparsity = chooser.max_sparsity()
    return describe_network(chooser, chooser.choose(sparsity), sparsity, budget)


def require_scores(store: Store, wanted: Cell, score: Callable[[], Scores]) -> Scores:
    """Return the scores of a cell; the network is scored if the store does not have them."""

    def compute(cell: Cell, place: Path) -> dict[str, Any]:
        began = time.process_time()
        scores = score()
        scores.save(place / _SCORES_FILE)
        return {"batches": scores.batches, "cpu_seconds": time.process_time() - began}

    store.require(wanted, compute)
    return Scores.load(store.place(wanted) / _SCORES_FILE)
