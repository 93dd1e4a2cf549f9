"""The least pruned network that keeps the budgets."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from torch import nn

from ranp.fitting.costing import Costing
from ranp.fitting.fitted import Fitted, fit_summary
from ranp.fitting.latency import fit_latency
from ranp.fitting.scoring import within_memory
from ranp.fitting.search import Alternative, BudgetSearch, Found, least_pruned_of
from ranp.fitting.target import StepInputAt, batch_like, no_loss
from ranp.fitting.training_step import TrainingStep
from ranp.pipeline import Events, Scoring, Target, Traced, logger, make_chooser, make_result, prune
from ranp.pruning import Choice, Chooser, Coupling, Floor, Method, resource_variants
from ranp.pruning.coupling import REACHING, normalizes_samples
from ranp.recording import timeline_of
from ranp.resources.budgets import RESOURCES, Budget, describe
from ranp.resources.memory_correction import load_correction
from ranp.resources.training_memory import LOSS_MARGIN, LossNotCounted
from ranp.results import Result
from ranp.slimming import Init, check_init

_UNSURE = 0.02  # a standard error of a time from which on it is said


@dataclass(frozen=True, repr=False)
class Fit(Result, Fitted):
    """A slim network that keeps its budgets, and how it was fitted."""

    def save(self, directory: str | Path, **about: Any) -> Path:
        """Write what `Result.save` writes, with the step that was fitted and its budgets."""
        lines = {name: timeline_of(memory) for name, memory in self.memory.items()}
        return super().save(directory, **{"timelines": lines, "fit": self.about(), **about})

    def summary(self) -> dict[str, Any]:
        """Return the plan and what was fitted as plain values, for JSON."""
        return {**self.to_dict(), **super().summary()}

    def __rich__(self) -> RenderableType:
        """Return budgets against figures, alternatives, and the kept neurons of every layer."""
        return fit_summary(self, super().__rich__())


def prune_network(
    traced: Traced,
    target: Target,
    step: TrainingStep | None,
    choice: Choice,
    scoring: Scoring,
    *,
    default_input: StepInputAt = no_loss,
    **options: Any,
) -> Result:
    """Prune to a sparsity, or within budgets: those of memory and time are fitted to a step.

    The other arguments are those of `fit_network`; `options` are `init`, `network` and `events`.
    """
    if not isinstance(target, tuple) or all(budget.is_counted for budget in target):
        return prune(traced, choice, target, scoring, **options)
    assert step is not None
    options["default_input"] = default_input
    return fit_network(traced, target, step, (choice,), scoring, **options)


def fit_network(
    traced: Traced,
    budgets: tuple[Budget, ...],
    step: TrainingStep,
    choices: Sequence[Choice],
    scoring: Scoring,
    *,
    default_input: StepInputAt = no_loss,
    init: Init = "fresh",
    network: str | None = None,
    events: Events | None = None,
) -> Fit:
    """Prune a network just as much as its budgets ask for.

    The network must be traced at the size that it is trained at, with a peeked loader, and the same
    scores must serve all choices. It is scored with less memory than asked for where that is short.
    The loss of a step is `scoring.forward` on the first batch; `default_input` where there is none.

    Raises:
        DoesNotFit: Nothing that can be pruned keeps the budgets.
    """
    check_init(init)
    events = events or Events()
    notes: list[str] = []
    first = traced.batches.first
    forward = scoring.forward if first is not None else None
    choice = choices[0]
    if choice.method.needs_data and scoring.scores is None and forward is not None:
        scoring, notes = within_memory(traced.model, first, scoring)
    chooser = make_chooser(traced, choice, scoring, events)
    input_at = batch_like(forward, first) if forward is not None else default_input
    choosers = [replace(chooser, choice=choice) for choice in choices]
    chooser, fitted = fit_choices(choosers, step, budgets, input_at=input_at, events=events)
    result = make_result(
        chooser, fitted.sparsity, traced.protect, network=network, init=init, alive=fitted.alive
    )
    if fitted.starved is not None:
        logger.warning(fitted.starved)
        notes.append(fitted.starved)
    return Fit(**vars(result), **{**vars(fitted), "notes": (*notes, *fitted.notes)})


def choice_for(
    model: nn.Module,
    target: Target,
    method: str | Method,
    *,
    coupling: Coupling | None = None,
    floor: Floor | None = None,
    **settings: Any,
) -> Choice:
    """Return the choice that `prune` makes.

    It is the paper's; where budgets are asked for, in networks that tie many channels, the coupling
    that reaches them (see `choices_to_try`).
    """
    choice = Choice.make(method, coupling=coupling or "paper", floor=floor or 0, **settings)
    by_budget = isinstance(target, tuple) and choice.method.selection.ranked
    if by_budget and coupling is None and normalizes_samples(model):
        reaching = REACHING[1] if floor is None else floor
        return replace(choice, coupling=REACHING[0], floor=reaching)
    return choice


def choices_to_try(
    model: nn.Module,
    method: str | None,
    budgets: Sequence[Budget],
    *,
    resource: str | Mapping[str, float] | None = None,
    coupling: Coupling | None = None,
    floor: Floor | None = None,
    **settings: Any,
) -> tuple[Choice, ...]:
    """Return the choices that `fit` tries.

    That of the method, or of every method that weighs by a resource, as RANP does: none of these
    keeps more neurons within the budgets than what `fit` returns. Others could: those that do not
    balance layers (magnitude, say) strip the few that bind, and keep the many that cost nothing.

    With a budget of time only the first one of these: the others' time would have to be measured
    too. Networks that normalize each sample by itself tie many channels, and are no networks of the
    paper's: there the coupling that removes what is asked for is tried as well.
    """
    row = Choice.make(method or "ranp-f").method
    rows = (row,) if method or resource else resource_variants(row)
    if any(RESOURCES[budget.resource].measured for budget in budgets):
        rows = rows[:1]
    else:
        rows = tuple(r for r in rows if r.resource is None or not RESOURCES[r.resource].measured)
    ways: list[tuple[Coupling, Floor]] = [(coupling or "paper", floor or 0)]
    if method is None and coupling is None and normalizes_samples(model):
        ways.insert(0, (REACHING[0], REACHING[1] if floor is None else floor))
    return tuple(
        Choice.make(row, resource=resource, coupling=how, floor=least, **settings)
        for row, (how, least) in product(rows, ways)
    )


def fit_choices(
    choosers: Sequence[Chooser],
    step: TrainingStep,
    budgets: tuple[Budget, ...],
    *,
    input_at: StepInputAt = no_loss,
    events: Events | None = None,
) -> tuple[Chooser, Fitted]:
    """Find the least pruned choice that keeps the budgets; raise `DoesNotFit` if none does.

    There is a chooser for each method; their graph is traced at the size that is trained at.

    Returns:
        The chooser that prunes least, and what it takes.
    """
    costing = Costing(choosers[0], input_at, load_correction(step.device))
    full = costing.chooser.graph.all_alive()
    counted = tuple(
        dict.fromkeys(["memory", "flops", "params", *(budget.resource for budget in budgets)])
    )
    whole = costing.figures(full, step, counted)
    constants = costing.constants(step)
    predicted = tuple(
        budget.absolute(whole[budget.resource], constants.get(budget.resource, 0.0))
        for budget in budgets
        if budget.resource in whole
    )
    timed = next((budget for budget in budgets if budget.resource not in whole), None)
    search, found, tried = least_pruned_of(
        [BudgetSearch(replace(costing, chooser=each), step, predicted) for each in choosers]
    )
    if found.best.keeps and timed is not None:
        found = fit_latency(search, timed, found, events or Events())
    asked, best = budgets, found.best
    budgets = predicted if found.time_budget is None else (*predicted, found.time_budget)
    if not best.keeps:
        methods = list(dict.fromkeys(each.choice.method.name for each in choosers))
        raise search.does_not_fit(budgets, best, methods)
    others: tuple[Alternative, ...] = ()
    if found.binding is not None and RESOURCES[found.binding].shrinks_with_input:
        others = search.alternatives(best.sparsity)
    starved = search.starved(best, others) if found.binding == "memory" else None
    memory = {
        name: costing.memory(alive, step) for name, alive in (("full", full), ("slim", best.alive))
    }
    figures = {"full": whole, "slim": costing.figures(best.alive, step, counted)}
    if found.time_budget is not None:
        figures["slim"]["latency"] = best.figures["latency"]
    if found.full_seconds is not None:
        figures["full"]["latency"] = found.full_seconds
    notes = ["the time of what to do instead was not measured"] if timed and others else []
    return search.costing.chooser, Fitted(
        step=step,
        loss=input_at(step).name,
        budgets=budgets,
        sparsity=best.sparsity,
        alive=best.alive,
        figures=figures,
        binding=found.binding,
        methods=() if timed else tried,
        alternatives=others,
        memory=memory,
        starved=starved,
        notes=(*notes, *_notes(found, asked, costing, step)),
    )


def _notes(
    found: Found, asked: Sequence[Budget], costing: Costing, step: TrainingStep
) -> Iterator[str]:
    """Yield what a reader of the figures should know; a loss that is not counted is warned of."""
    if found.time_error > _UNSURE:
        yield (
            f"times vary here: that of the slim network is known to {100 * found.time_error:.0f} % "
            "only; fit again when the machine is quiet"
        )
    constants = costing.constants(step)
    for budget in asked:
        if budget.of_full and constants.get(budget.resource):
            constant = describe(budget.resource, constants[budget.resource])
            yield (
                f"{100 * budget.limit:g} % of the {budget.resource} is of what pruning can change: "
                f"any network takes {constant} (the CUDA context)."
            )
    known = costing.correction
    if known is not None and step.precision in known.factors:
        yield (
            f"Memory is multiplied by {known.factors[step.precision]:.3f}, as `ranp doctor "
            f"--memory` measured on {known.device}, {known.date}."
        )
    memory = costing.memory(costing.chooser.graph.all_alive(), step)
    if memory.loss_margin:
        margin = describe("memory", memory.loss_margin)
        note = (
            f"The memory of the loss could not be predicted: {memory.untraced}. A margin of "
            f"{margin} is used instead ({LOSS_MARGIN} times the outputs): measure a step "
            "before you rely on it."
        )
        warnings.warn(note, LossNotCounted, stacklevel=5)
        yield note
