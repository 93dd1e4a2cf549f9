"""`ranp.fit`: the least pruned network that keeps the budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from torch import Tensor, nn

from ranp.api import Result, make_result, trace
from ranp.errors import UsageError
from ranp.fitting.budgets import Amount, Budget, ResourceName, make_budgets
from ranp.fitting.costing import Costing, LossAt, no_loss
from ranp.fitting.fitted import Fitted, fit_summary
from ranp.fitting.latency import FoundInTime, fit_latency
from ranp.fitting.machine import default_device
from ranp.fitting.scoring import Economy
from ranp.fitting.search import (
    Alternative,
    Candidate,
    does_not_fit,
    find_alternatives,
    least_pruned,
)
from ranp.fitting.target import loss_like
from ranp.fitting.training_step import TrainingStep
from ranp.graph import ChannelGraph, unwrap
from ranp.pruning import (
    DEFAULT_LAMBDA,
    Chooser,
    Coupling,
    Forward,
    LossFunction,
    Method,
    Per,
    Resource,
    Scores,
    ScoringWeights,
    find_method,
    make_forward,
)
from ranp.pruning import score as score_neurons
from ranp.pruning.batches import no_forward, split_pair
from ranp.recording import timeline_of
from ranp.resources.autocast import Precision
from ranp.resources.training_memory import Device, Optimizer
from ranp.slimming import Init


@dataclass(frozen=True)
class Fit(Result):
    """A network that keeps its budgets, and how it came about.

    Attributes:
        fitted: What was decided.
    """

    fitted: Fitted

    @property
    def sparsity(self) -> float:
        """The share of neurons that was removed."""
        return self.fitted.sparsity

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """What the network may cost."""
        return self.fitted.budgets

    @property
    def figures(self) -> Mapping[str, Mapping[ResourceName, float]]:
        """By network ("full", "slim"), what each resource takes."""
        return self.fitted.figures

    @property
    def binding(self) -> ResourceName | None:
        """The budget that forbids to prune less; None if nothing is pruned."""
        return self.fitted.binding

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Other ways to train within the budgets that prune less, best first."""
        return self.fitted.alternatives

    def save(
        self,
        directory: str | Path,
        *,
        command: str | None = None,
        data: str | None = None,
        measured: Mapping[str, Mapping[str, float]] | None = None,
        timelines: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Path:
        """Writes what `Result.save` writes; the timelines are those of the step that was fitted."""
        lines = {name: timeline_of(memory) for name, memory in self.fitted.memory.items()}
        return super().save(
            directory, command=command, data=data, measured=measured, timelines=timelines or lines
        )

    def __rich__(self) -> RenderableType:
        """Budgets against figures, the alternatives, and the kept neurons of every layer."""
        return fit_summary(self.fitted, super().__rich__())


def fit(
    model: nn.Module,
    loader: Iterable[Any] | None = None,
    loss: LossFunction | None = None,
    *,
    memory: Amount | None = None,
    flops: Amount | None = None,
    params: Amount | None = None,
    latency: Amount | None = None,
    batch: int | None = None,
    input: tuple[int, ...] | None = None,
    optimizer: Optimizer = "adam",
    precision: Precision = "32",
    recompute: bool = False,
    device: Device | None = None,
    method: str = "ranp-f",
    lam: float | None = None,
    resource: Resource | Mapping[str, float] | None = None,
    forward: Forward | None = None,
    scores: Scores | None = None,
    batches: int | None = None,
    per: Per = "batch",
    weights: ScoringWeights = "fresh",
    init: Init = "fresh",
    seed: int = 0,
    coupling: Coupling = "paper",
    floor: int = 0,
    multiple: int = 1,
    protect: Iterable[str] = (),
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
        floor: Neurons that every layer keeps at least.
        multiple: Round channel counts up to a multiple of it.
        protect: Layers whose neurons must all stay.

    Returns:
        What `ranp.prune` returns, with the sparsity, the budgets, what the networks cost, which
        budget binds, and the alternatives.

    Raises:
        DoesNotFit: Nothing that can be pruned keeps the budgets; an `InfeasibleError` that names
            the nearest figure and what would do.
    """
    given: dict[ResourceName, Amount | None] = {
        "memory": memory,
        "flops": flops,
        "params": params,
        "latency": latency,
    }
    budgets = make_budgets(given)
    row = find_method(method)
    protect = tuple(protect)
    loader, first = _first_batch(loader)
    x, y = _pair(first) if forward is None else (None, None)
    if x is None and (batch is None or input is None):
        raise UsageError("say what is trained with: give batch and input")
    first_shape = () if x is None else tuple(x.shape)
    step = TrainingStep(
        batch=first_shape[0] if batch is None else batch,
        sample=first_shape[1:] if input is None else tuple(input),
        optimizer=optimizer,
        precision=precision,
        recompute=recompute,
        device=device or default_device(),
    )
    graph = trace(model, (1, *step.sample), protect=protect)
    notes: list[str] = []
    if row.needs_scores and scores is None:
        run = make_forward(loss, forward) if row.needs_data else no_forward
        if row.needs_data and loader is None:
            raise UsageError(f"{method} scores with data: give a loader, or scores")
        scores, said = _score(
            model, graph, row, loader, x, run, weights=weights, batches=batches, per=per, seed=seed
        )
        notes += said
    chooser = Chooser(
        unwrap(model),
        graph,
        row,
        scores,
        lam=DEFAULT_LAMBDA if lam is None else lam,
        resource=resource,
        coupling=coupling,
        floor=floor,
        multiple=multiple,
        seed=seed,
    )
    loss_at = loss_like(loss, x, y, notes.append)
    fitted = fit_choice(chooser, step, budgets, loss_at=loss_at)
    fitted = replace(fitted, notes=(*notes, *fitted.notes))
    return make_fit(chooser, fitted, protect, init=init)


def make_fit(
    chooser: Chooser,
    fitted: Fitted,
    protect: Iterable[str] = (),
    *,
    network: str | None = None,
    init: Init = "fresh",
) -> Fit:
    """Plan and slim network of what was decided."""
    made = make_result(chooser, fitted.sparsity, protect, network=network, init=init)
    return Fit(made.model, made.plan, made.chooser, made.before, made.after, fitted)


def fit_choice(
    chooser: Chooser,
    step: TrainingStep,
    budgets: tuple[Budget, ...],
    *,
    loss_at: LossAt = no_loss,
    on_trial: Callable[[Candidate], None] = lambda trial: None,
) -> Fitted:
    """Finds the least pruned choice of channels that keeps the budgets.

    Args:
        chooser: Chooses the channels; its graph is traced at the size that is trained at.
        step: How the network is trained.
        budgets: At least one.
        loss_at: The loss in a way to train; it takes memory too.
        on_trial: Told of each choice whose time was measured.

    Raises:
        DoesNotFit: There is none.
    """
    costing = Costing(chooser, loss_at)
    full = chooser.graph.all_alive()
    counted: tuple[ResourceName, ...] = ("memory", "flops", "params")
    whole = costing.figures(full, step, counted)
    predicted = tuple(
        budget.absolute(whole[budget.resource]) for budget in budgets if budget.resource in counted
    )
    timed = next((budget for budget in budgets if budget.resource == "latency"), None)
    found = least_pruned(costing, step, predicted)
    if found.best.keeps and timed is not None:
        found = fit_latency(costing, step, timed, predicted, found, on_trial)
    in_time = found if isinstance(found, FoundInTime) else None
    budgets = predicted if in_time is None else (*predicted, in_time.budget)
    best = found.best
    if not best.keeps:
        raise does_not_fit(costing, step, budgets, best)
    others: tuple[Alternative, ...] = ()
    if found.binding in ("memory", "flops"):
        others = find_alternatives(costing, step, predicted, best.sparsity)
    figures = {"full": whole, "slim": costing.figures(best.alive, step, counted)}
    if in_time is not None:
        figures["slim"]["latency"] = best.figures["latency"]
        if in_time.full is not None:
            figures["full"]["latency"] = in_time.full
    return Fitted(
        step=step,
        budgets=budgets,
        sparsity=best.sparsity,
        figures=figures,
        binding=found.binding,
        alternatives=others,
        memory={
            name: costing.memory(alive, step)
            for name, alive in (("full", full), ("slim", best.alive))
        },
        notes=("the time of what to do instead was not measured",) if timed and others else (),
    )


def _score(
    model: nn.Module,
    graph: ChannelGraph,
    method: Method,
    loader: Iterable[Any] | None,
    x: Tensor | None,
    forward: Forward,
    *,
    weights: ScoringWeights,
    batches: int | None,
    per: Per,
    seed: int,
) -> tuple[Scores, list[str]]:
    """Scores with the memory that there is, and says how."""
    make = partial(
        score_neurons,
        model,
        graph,
        statistics=method.statistics,
        weights=weights,
        batches=batches,
        seed=seed,
    )
    if not method.needs_data or loader is None:
        return make(loader=None, forward=no_forward), []
    if x is None:  # only the user's forward knows what a batch is made of
        return make(loader=loader, forward=forward, per=per), []
    economy = Economy(model, x, per)
    with economy.running(model):
        scores = make(loader=loader, forward=forward, per=economy.per)
    return scores, [economy.about] if economy.about else []


def _first_batch(loader: Iterable[Any] | None) -> tuple[Iterable[Any] | None, Any]:
    """The loader and its first batch, which an iterator gets back; None where there is none."""
    if loader is None:
        return None, None
    batches = iter(loader)
    first = next(batches, None)
    return (chain([first], batches) if batches is loader else loader), first


def _pair(batch: Any) -> tuple[Tensor | None, Any]:
    """Input and target of a batch."""
    if batch is None:
        return None, None
    x, y = split_pair(batch)
    if not isinstance(x, Tensor):
        raise UsageError(
            "the batch's input is not a single tensor: give a forward(model, batch), and say "
            "what is trained with by batch and input"
        )
    return x, y
