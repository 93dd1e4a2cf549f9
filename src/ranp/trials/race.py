"""Races with the user's own network and training loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import RenderableType

from ranp.display import plain
from ranp.errors import UsageError, name_settings
from ranp.files import json_sha256, write_sealed_json, write_text
from ranp.fitting import TrainingStep
from ranp.fitting.target import batch_like, no_loss
from ranp.graph import Alive, ExampleInput
from ranp.pipeline import Scoring, Target, Traced
from ranp.pruning import Choice, Coupling, Forward
from ranp.pruning.coupling import Floor
from ranp.report.terminal import numbers, table
from ranp.resources.budgets import Amount, Budget, parse_budgets
from ranp.slimming import Plan
from ranp.trials.allocating import Allocation, Allocator, ScoreWith, make_allocator
from ranp.trials.candidates import bring_to_budget, choose_candidates, refinements
from ranp.trials.ladder import (
    Entry,
    Ladder,
    Rung,
    Schedule,
    best_metrics,
    least_cost,
    make_schedule,
    parse_cost,
)
from ranp.trials.loops import (
    Build,
    Line,
    Loop,
    Train,
    check_loop,
    goal_of,
    refuse_all_diverged,
    training_name,
)
from ranp.trials.processes import Worker, helpers
from ranp.trials.source_code import code_fingerprint
from ranp.trials.store import Store

RACE = "race"

DEFAULT_COST = 0.05
"""Most that a race costs, as a share of the training that follows."""

_SHOWN = 2
"""Values of a check-in that are shown in the terminal, such as the metric and the loss."""


@dataclass(frozen=True)
class RaceResult:
    """The winner of a race, and why it won.

    Attributes:
        winner: Name of the winning candidate.
        allocation: Its network.
        rungs: Ranking at every rung.
        refined: Refinements of the winner that were tried, and the check-in at which each fell
            behind; None for one that won.
        challenger: The best candidate of the last rung, if it is not the first one.
        confirmed: Whether the challenger was clearly ahead over both seeds.
        curves: Metrics that the trainings yielded.
        again: The same with the second seed, for the networks in the final.
        widths: Number of neurons in every layer.
        left_out: Candidates that could not race, and why.
        stated: Maximum cost of the race, as a share of the training that follows. All candidates
            have the same budget, so shares of check-ins are shares of FLOPs.
        spent: Actual cost, in the same unit.
        cpu_seconds: CPU time that it took.
    """

    winner: str
    allocation: Allocation
    rungs: tuple[Rung, ...]
    refined: Mapping[str, int | None]
    challenger: str | None
    confirmed: bool
    curves: Mapping[str, Sequence[Line]]
    again: Mapping[str, Sequence[Line]]
    widths: Mapping[str, Mapping[str, int]]
    left_out: Mapping[str, str]
    stated: float
    spent: float
    cpu_seconds: float

    @property
    def plan(self) -> Plan:
        """The winner's plan."""
        return self.allocation.plan

    @property
    def why(self) -> str:
        """Why it won, in a sentence."""
        first, challenger = next(iter(self.widths)), self.challenger
        if len(self.widths) == 1:
            return "no other candidate could race."
        if challenger is None:
            reason = f"{first} leads to the last rung"
        elif self.confirmed:
            reason = f"{challenger} is clearly ahead of {first} over two seeds"
        else:
            reason = f"{challenger} leads, but not clearly over two seeds, so {first} stays"
        better = [name for name, dropped in self.refined.items() if dropped is None]
        return f"{reason}{f'; {better[-1]} beats it over both' if better else ''}."

    @property
    def caution(self) -> str | None:
        """Why the race says little, in a sentence; None if its candidates have learned."""
        return caution(list(self.curves.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return all but the network as plain values, for JSON."""
        fields = {name: value for name, value in vars(self).items() if name != "allocation"}
        fields["rungs"] = [asdict(rung) for rung in self.rungs]
        sentences = {"why": self.why, "caution": self.caution}
        return {"schema": 1, "kind": "race", **fields, **sentences}

    def save(self, directory: str | Path, command: str | None = None) -> Path:
        """Write the winner's plan, the race's record and its page into a directory."""
        from ranp.report.race import render_race

        out = Path(directory)
        self.plan.save(out / "plan.json")
        write_sealed_json(out / "race.json", self.to_dict())
        write_text(out / "race.html", render_race(self.to_dict(), command))
        return out

    def __rich__(self) -> RenderableType:
        """Return the standing as a table."""
        rungs = [rung.check_ins for rung in self.rungs if rung.check_ins]
        cost = f"The race cost {100 * self.spent:.4g} % of a training."
        title = f"{self.winner} wins: {self.why} {cost}"
        lines = (line for curve in self.curves.values() for line in curve[:1])
        names = list(next(lines, {}))[:_SHOWN]
        caption = f"At the check-ins: {', '.join(names)}." if names else None
        columns = numbers(*(f"check-in {check_ins}" for check_ins in rungs))
        rows = table("candidate", *columns, "neurons of each layer", title=title, caption=caption)
        for name, widths in self.widths.items():
            curve = self.curves[name]
            reached = [
                ", ".join(f"{curve[at - 1][each]:.3g}" for each in names)
                if at <= len(curve)
                else ""
                for at in rungs
            ]
            rows.add_row(name, *reached, " ".join(map(str, widths.values())))
        return rows

    def __str__(self) -> str:
        """Return the same as text."""
        return plain(self)


def caution(curves: Collection[Sequence[Line]]) -> str | None:
    """Return why trainings say little of their networks; None if they say enough, or are none."""
    first, now = best_metrics(curves)
    farthest = max(map(len, curves), default=0)
    if farthest == 0 or now > first:
        return None
    if farthest == 1:
        return (
            "All candidates were judged at their first check-in, which does not tell whether they "
            "have learned anything yet; race at a higher cost, or yield more often."
        )
    goal = next(goal_of(curve[0]) for curve in curves if curve)
    return (
        f"The {goal} has not risen: it is at most {now:.3g} at the last rung, and was up to "
        f"{first:.3g} at the first check-in. Do not rely on this choice: race at a higher cost, or "
        "see whether the full network learns with this loop."
    )


@dataclass(frozen=True)
class _Course:
    """Trains the networks of a race as far as its ladder asks.

    Attributes:
        race: What the race is called among its processes.
        runs: Results so far, by network and whether it was trained with the second seed.
    """

    race: str
    loop: Loop
    schedule: Schedule
    seed: int
    networks: dict[str, Alive]
    tell: Callable[[str], None]
    runs: dict[Entry, dict[str, Any]] = field(default_factory=dict)

    def curves(self, entries: Sequence[Entry], check_ins: int) -> list[Sequence[Line]]:
        """Return what trainings yield at the first check-ins; tell of each that goes further."""
        trainings = [(self.networks[name], self.seed + again) for name, again in entries]
        found: dict[int, Sequence[Line]] = {}
        for number, run in self.loop.run(trainings, check_ins, self.race):
            found[number] = run["curve"]
            self._keep(entries[number], run)
        return [curve for _, curve in sorted(found.items())]

    def _keep(self, entry: Entry, run: dict[str, Any]) -> None:
        curve = run["curve"]
        if entry in self.runs and len(curve) <= len(self.runs[entry]["curve"]):
            return
        self.runs[entry] = run
        (name, again), done = entry, sum(len(run["curve"]) for run in self.runs.values())
        shown = list(curve[-1].items())[:_SHOWN] if curve else []
        value = run.get("reason") or ", ".join(f"{name} {value:.3g}" for name, value in shown)
        reached = f"{name}, seed {self.seed + again}, at check-in {len(curve)}: {value}"
        self.tell(f"{done} of at most {self.schedule.check_ins} check-ins; {reached}")


def _climb(course: _Course) -> None:
    """Help another process with a race up to its last rung."""
    with closing(course.loop):
        Ladder(course.schedule, course.curves).run(list(course.networks))


def _say_nothing(text: str) -> None:
    pass


@dataclass
class Racing:
    """Runs the races of a comparison: one for each budget and seed.

    Attributes:
        allocator: Brings candidates to a budget.
        length: Check-ins of a whole training.
        candidates: Names of methods; the default ones if None.
        cost: Most that a race may cost, as a share of the training that follows: 0.05, "5%".
        tell: Called with a line before candidates are chosen, with the stated cost before anything
            is trained, after every training, and at every rung.
        jobs: Number of processes that train.
    """

    allocator: Allocator
    length: int
    candidates: Sequence[str] | None = None
    cost: Amount = DEFAULT_COST
    tell: Callable[[str], None] = _say_nothing
    jobs: int = 1

    def run(self, budget: Budget, seed: int) -> RaceResult:
        """Race the candidates at a budget."""
        loop, cost = self.allocator.loop, parse_cost(self.cost)
        choices = choose_candidates(self.allocator, self.candidates, budget, seed)
        if len(choices) > 1:
            make_schedule(len(choices), self.length, cost)  # refused at once if it allows no race
        noun = "candidate" if len(choices) == 1 else "candidates"
        self.tell(f"Bringing {len(choices)} {noun} to the budget")
        allocations, left_out = bring_to_budget(self.allocator, choices, budget)
        for name, reason in left_out.items():
            self.tell(f"Left out, {name}: {reason}")
        schedule = make_schedule(len(allocations), self.length, cost)
        self.tell(self._stated(schedule, len(allocations)))
        networks = {name: allocation.alive for name, allocation in allocations.items()}
        entrants = [loop.cell(alive, seed) for alive in networks.values()]
        race = json_sha256([entrants, asdict(schedule)])
        course = _Course(race, loop, schedule, seed, networks, self.tell)
        ladder, runs = Ladder(schedule, course.curves, self._report_rung), course.runs
        helping = min(self.jobs, 1 + schedule.rungs[0][1]) - 1
        with closing(loop):
            with helpers(helping, Worker(_climb), replace(course, tell=_say_nothing)):
                winner = ladder.run(list(allocations))
            refuse_all_diverged(runs.values())
            if schedule.refined:
                network = allocations[winner]
                refined = refinements(self.allocator, winner, network, budget, seed)
                allocations |= refined
                networks |= {name: allocation.alive for name, allocation in refined.items()}
                winner = ladder.refine(winner, list(refined))
        raced = [name for name in allocations if (name, False) in runs] or [winner]
        result = RaceResult(
            winner=winner,
            allocation=allocations[winner],
            rungs=tuple(ladder.rungs),
            refined=ladder.refined,
            challenger=ladder.challenger,
            confirmed=ladder.confirmed,
            curves={name: runs[name, False]["curve"] if runs else [] for name in raced},
            again={name: runs[name, True]["curve"] for name in raced if (name, True) in runs},
            widths={name: allocations[name].widths for name in raced},
            left_out=left_out,
            stated=schedule.cost,
            spent=sum(len(run["curve"]) for run in runs.values()) / self.length,
            cpu_seconds=sum(run["cpu_seconds"] for run in runs.values()),
        )
        if result.caution is not None:
            self.tell(f"Caution: {result.caution}")
        return result

    def _report_rung(self, rung: Rung) -> None:
        if not rung.check_ins:
            return  # a single candidate, which is not trained
        on = f"; {', '.join(rung.kept)} go on" if len(rung.kept) > 1 else ""  # one at the last
        self.tell(f"Rung at check-in {rung.check_ins}: {' > '.join(rung.standing)}{on}")

    def _stated(self, schedule: Schedule, candidates: int) -> str:
        """Return what a race costs at the most, and what it would take to race them all."""
        if candidates == 1:
            return "A single candidate reaches the budget, so nothing is trained"
        racing = 1 + schedule.rungs[0][1]
        stated = (
            f"Race of {racing} candidates: at most {100 * schedule.cost:.4g} % of the training "
            f"that follows ({schedule.check_ins} check-ins, the training has {self.length})"
        )
        if racing == candidates:
            return stated
        return (
            f"{stated}; all {candidates} would race at "
            f"{name_settings(cost=least_cost(candidates, self.length))}, or with more frequent "
            "check-ins"
        )


def race_choice(
    traced: Traced,
    train: Train,
    length: int,
    budgets: Target,
    choice: Choice,
    scoring: Scoring,
    step: TrainingStep | None,
    tell: Callable[[str], None],
) -> tuple[Choice, Scoring]:
    """Race the default candidates on a traced network at one budget.

    Returns:
        The winner's choice, and how to score with the scores that it was chosen by.
    """
    if not isinstance(budgets, tuple) or len(budgets) != 1:
        raise UsageError(
            "a race is between networks of one cost; give one of flops, memory, params"
        )
    check_loop(train, length)
    least = least_cost(2, length)
    if least > DEFAULT_COST:
        raise UsageError(
            f"a training must have more check-ins for method='race', which costs at most "
            f"{100 * DEFAULT_COST:g} % of it, got length={length}; yield more often, or use "
            f"ranp.race with cost={least} or more"
        )
    first, forward = traced.batches.first, scoring.forward
    input_at = no_loss if first is None or forward is None else batch_like(forward, first)
    loop = Loop(
        Store("out/race/cells", code=code_fingerprint(Racing, train)),
        traced.model,
        traced.graph,
        train,
        name=training_name(train),
    )
    names = ("lam", "coupling", "floor", "multiple")
    settings = {name: getattr(choice, name) for name in names}
    allocator = Allocator(loop, traced.batches.loader, scoring, settings, step, input_at)
    found = Racing(allocator, length, tell=tell).run(budgets[0], choice.seed)
    winner = found.allocation.chooser
    return winner.choice, replace(scoring, scores=winner.scores)


def race(
    build: Build,
    train: Train,
    *,
    budget: Mapping[str, Amount],
    length: int,
    candidates: Sequence[str] | Literal["default"] = "default",
    cost: Amount = DEFAULT_COST,
    seed: int = 0,
    score_with: ScoreWith | None = None,
    forward: Forward | None = None,
    example_input: ExampleInput | None = None,
    name: str | None = None,
    lam: float | None = None,
    coupling: Coupling | None = None,
    floor: Floor | None = None,
    step: TrainingStep | None = None,
    out: str | Path = "out/race",
    jobs: int = 1,
    tell: Callable[[str], None] = print,
) -> RaceResult:
    """Train several slim networks of the same cost for a short while, and return the best.

    All candidates are brought to the budget. On every rung the worse half is dropped: first those
    far behind in the metric, once it has risen, then those with the higher training loss. The first
    candidate stays unless another is clearly ahead over two seeds: by a tenth of the metric, or by
    a tenth of the loss at no lower metric. Then a few refinements of the winner are tried. You can
    stop a race at any time: the same call continues where it was. Started several times, on
    machines with a common file system, the processes share the work.

    Args:
        build: Function that returns the full network.
        train: Trains a network and yields a metric at every check-in (see `compare`).
        budget: Budget of the slim network, such as {"flops": "10%"}.
        length: Number of check-ins of the whole training that follows.
        candidates: Names in `ranp.METHODS`: first the one to beat, then the most promising. The
            default begins with RANP for the budgeted resource (ranp-f, ranp-m, ranp-p) if
            `score_with` is given, and otherwise with thin, followed by other rules that need no
            data.
        cost: Maximum cost of the race, as a share of the training that follows, in FLOPs: 0.05, or
            "5%".
        seed: Seed of scores, fresh weights and trainings; the final also uses the next one.
        score_with: Loader and `loss(output, target)` to score with; the loader alone with
            `forward`.
        forward: `forward(model, batch)` -> scalar tensor, instead of the loss: for several inputs,
            batches with other names, or deep supervision.
        example_input: Input to trace the network with; if None, the first batch's input, or what
            `forward` calls the network with.
        name: Name of the training in the store; the function's name if None.
        lam: lambda of Eq. 10; 11 if None.
        coupling: Rule for channels that are tied by additions; as in `prune` if None.
        floor: Minimum number of neurons in every layer, or "auto"; as in `prune` if None.
        step: How the network is trained, for a memory budget.
        out: Directory for the runs.
        jobs: Number of processes that train, on this machine.
        tell: Called with a line of progress, and with the maximum cost before anything is trained.
    """
    check_loop(train, length, build)
    budgets = parse_budgets(budget)
    if len(budgets) != 1:
        raise UsageError(f"a race must have one budget, got {len(budgets)}")
    if not isinstance(jobs, int) or jobs < 1:
        raise UsageError(
            f"jobs of a race must be a number of processes on this machine, got {jobs!r}; "
            "on a cluster, start the race in several jobs, which share its trainings"
        )
    store = Store(Path(out) / "cells", code=code_fingerprint(Racing, build, train))
    given: dict[str, Any] = {"score_with": score_with, "forward": forward, "name": name}
    given["example_input"] = example_input
    how: dict[str, Any] = {"lam": lam, "coupling": coupling, "floor": floor, "step": step}
    allocator = make_allocator(build, train, store, **given, **how)
    names = None if candidates == "default" else candidates
    return Racing(allocator, length, names, cost, tell, jobs).run(budgets[0], seed)
