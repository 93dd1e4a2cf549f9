"""The race: allocations of one cost, trained a little, the worse ones dropped rung by rung.

All candidates are brought to the same budget, so a check-in of each costs the same FLOPs. The first
one, the incumbent, is what `prune` would have chosen without a race, and runs to the end. The
others, the challengers, are trained to the first rung, the better half of them to the next, which
is twice as far, and so on.

Slim networks of one cost mostly end alike, and a starved network's luck with one seed is larger
than most differences between allocations. So the best challenger and the incumbent meet on the last
rung with the race's seed and once more with another, and the incumbent stays unless the challenger
is clearly ahead by the mean of both (see `clearly_ahead`). (Not ahead both times: where one of the
two misses a class with one seed, a hair's breadth with the other must not decide.) That meeting
decides, so the last rung is as far as the cost allows. What is left of the cost goes to a few
refinements of the winner, which must be ahead of it at every rung, and clearly so by the mean of
both seeds.

Halving is synchronous: a rung is judged when all its candidates are there. (The pruners of tuning
libraries judge as candidates come in, so the first is always trained to the end: neither cost nor
winner would be fixed by the seed.) Processes can share the trainings of a rung, which do not wait
for each other. Curves are cells of the store: a killed race goes on, and what a comparison has
trained already is not trained again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ranp.errors import UsageError
from ranp.resources.budgets import Amount
from ranp.trials.loops import LOSS, Line, goal_of

Entry = tuple[str, bool]
"""A candidate, and whether it is trained with the second seed."""

Curves = Callable[[Sequence[Entry], int], Sequence[Sequence[Line]]]
"""`curves(entries, check_ins)` -> what each training yields at the first check-ins.

None of them waits for another, so that processes can share them out.
"""

REFINED_AT_MOST = 4

_CLEAR = 0.1
"""Share of the metric, or of the loss, by which one candidate is clearly ahead of another."""


@dataclass(frozen=True)
class Schedule:
    """How far a race goes, and what it costs at the most.

    Attributes:
        rungs: Check-ins up to which challengers are trained, and how many are.
        refined: Refinements of the winner that can be afforded after that.
        length: Check-ins of a whole training.
    """

    rungs: tuple[tuple[int, int], ...]
    refined: int
    length: int

    @property
    def check_ins(self) -> int:
        """The most check-ins that are trained, over all candidates and both seeds."""
        done, total = 0, 0
        for check_ins, challengers in self.rungs:
            total += challengers * (check_ins - done)
            done = check_ins
        return total + done + 2 * done * (1 + self.refined)

    @property
    def cost(self) -> float:
        """The same as a share of the training that follows."""
        return self.check_ins / self.length


def parse_cost(cost: Amount) -> float:
    """Return the cost of a race as a share of the training that follows: 0.05 for "5%"."""
    try:
        is_percent = isinstance(cost, str) and cost.rstrip().endswith("%")
        share = float(str(cost).rstrip(" %")) / 100 if is_percent else float(cost)
    except (TypeError, ValueError):
        share = math.nan
    if not 0 < share < math.inf:
        raise UsageError(
            "cost of a race must be a share of the training that follows, such as 0.05, 5% or "
            f"400%, got {cost!r}"
        )
    return share


def make_schedule(candidates: int, length: int, cost: float) -> Schedule:
    """Return the longest race that a cost allows, as a share of the training that follows.

    As many candidates as possible race, with the one that must be beaten; then the first rung is as
    long as possible, then the last.

    Raises:
        UsageError: The cost does not allow one check-in of two candidates.
    """
    if length < 1:
        raise UsageError(f"length of a race must be at least 1 check-in, got {length}")
    if candidates == 1:
        return Schedule(((0, 0),), 0, length)  # it has won: nothing is trained
    allowed = math.floor(cost * length + 1e-9)
    for challengers in range(candidates - 1, 0, -1):
        for first in range(max(1, allowed // challengers), 0, -1):
            rungs = _rungs(challengers, first, length)
            spare = allowed - Schedule(rungs, 0, length).check_ins
            if spare >= 0:
                return _extend(rungs, spare, length)
    two, everyone = (f"{100 * least_cost(each, length):g} %" for each in (2, candidates))
    for_all = f", and {everyone} for all {candidates}" if candidates > 2 else ""
    raise UsageError(
        f"cost must be at least {two} of the training for a race of two candidates{for_all}, got "
        f"{100 * cost:g} %; give that, or yield more often"
    )


def _extend(rungs: tuple[tuple[int, int], ...], spare: int, length: int) -> Schedule:
    """Return a schedule that uses spare check-ins for the last rung, then for refinements."""
    *others, (last, challengers) = rungs
    each = challengers + 3  # the incumbent goes there too, and two of them meet again
    further = min(spare // each, length - last)
    last += further
    refined = min(REFINED_AT_MOST, (spare - each * further) // (2 * last))
    return Schedule((*others, (last, challengers)), refined, length)


def least_cost(candidates: int, length: int) -> float:
    """Return the least cost at which a number of candidates race, to a thousandth."""
    least = Schedule(_rungs(candidates - 1, 1, length), 0, length)
    return math.ceil(1000 * least.cost - 1e-9) / 1000


def _rungs(challengers: int, first: int, length: int) -> tuple[tuple[int, int], ...]:
    """Return check-ins and challengers of every rung: half as many go twice as far."""
    rungs, check_ins = [], first
    while True:
        check_ins = min(check_ins, length)
        rungs.append((check_ins, challengers))
        if challengers <= 2 or check_ins == length:
            return tuple(rungs)
        challengers, check_ins = math.ceil(challengers / 2), 2 * check_ins


def standing(curves: Mapping[str, Sequence[Line]]) -> list[str]:
    """Return candidates by how they do, the best first.

    The training loss decides: it averages over every sample since the last check-in, and with one
    seed all candidates meet the same ones. A metric that early is that of a few cases, so it only
    tells who is clearly behind, once it has risen: by more than a tenth of the best one, as where a
    class is missed. Both are means over the second half of the check-ins. A training that says no
    loss is judged by its metric alone. Trainings that diverged, and so ended before the others,
    come last.
    """
    longest = max(curves.values(), key=len)
    goal = goal_of(longest[-1]) if longest else LOSS
    goals = {name: _recent(curve, goal) for name, curve in curves.items()}
    losses = {name: _recent(curve, LOSS) for name, curve in curves.items()}
    best = max(goals[name] for name, curve in curves.items() if len(curve) == len(longest))
    risen = has_risen(curves.values())

    def key(name: str) -> tuple[bool, bool, float, float]:
        diverged = len(curves[name]) < len(longest)
        behind = risen and best - goals[name] > _CLEAR * abs(best)
        return diverged, behind, losses[name], -goals[name]

    return sorted(curves, key=key)


def has_risen(curves: Collection[Sequence[Line]]) -> bool:
    """Return whether the metric tells more than luck.

    An untrained network has some of it by chance, and may lose that when it begins to learn. So the
    metric tells something once it is above what any training had at its first check-in.
    """
    first, now = best_metrics(curves)
    return now > first


def best_metrics(curves: Collection[Sequence[Line]]) -> tuple[float, float]:
    """Return the best metric at the first check-in, and the best of those that went farthest.

    The latter are means over the second half of the check-ins.
    """
    begun = [curve for curve in curves if curve]
    if not begun:
        return 0.0, 0.0
    goal, farthest = goal_of(begun[0][0]), max(map(len, begun))
    now = max(_recent(curve, goal) for curve in begun if len(curve) == farthest)
    return max(curve[0][goal] for curve in begun), now


def clearly_ahead(curve: Sequence[Line], other: Sequence[Line]) -> bool:
    """Return whether a training is so far ahead of another that luck does not explain it.

    Either the metric has risen and its own is higher by more than a tenth, or its loss is lower by
    more than a tenth and its metric is no lower. (A loss alone says how fast a network becomes sure
    of itself, which depends on the width of what its last layer reads.) All are means over the
    second half of the check-ins. What diverged is ahead of nothing, and behind everything that did
    not.
    """
    if len(curve) != len(other):
        return len(curve) > len(other)
    if not curve:
        return False
    goal = goal_of(curve[-1])
    metric, its_metric = _recent(curve, goal), _recent(other, goal)
    loss, its_loss = _recent(curve, LOSS), _recent(other, LOSS)
    if has_risen([curve, other]) and metric - its_metric > _CLEAR * abs(metric):
        return True
    return metric >= its_metric and its_loss - loss > _CLEAR * abs(its_loss)


def _mean_curve(curves: Sequence[Sequence[Line]]) -> list[Line]:
    """Return the mean of curves, check-in by check-in, of what all of them say there."""
    return [
        {
            name: fmean(line[name] for line in lines)
            for name in lines[0]
            if all(name in line for line in lines)
        }
        for lines in zip(*curves, strict=False)
    ]


def _recent(curve: Sequence[Line], name: str) -> float:
    """Return the mean over the second half of a curve; 0 where nothing is said."""
    values = [line[name] for line in curve[len(curve) // 2 :] if name in line]
    return fmean(values) if values else 0.0


@dataclass(frozen=True)
class Rung:
    """A rung that was judged.

    Attributes:
        check_ins: How far its candidates were trained.
        standing: Candidates, the best first.
        kept: Those that go on.
    """

    check_ins: int
    standing: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass
class Ladder:
    """A race under way.

    Attributes:
        schedule: How far it goes.
        curves: Trains candidates.
        on_rung: Called with every rung when it is judged.
        rungs: What was judged so far.
        challenger: The best of the last rung, if it is not the incumbent.
        confirmed: Whether the challenger was clearly ahead of the incumbent over both seeds.
        refined: Refinements of the winner that were tried, and the check-in at which each fell
            behind; None for one that won.
    """

    schedule: Schedule
    curves: Curves
    on_rung: Callable[[Rung], None] = lambda rung: None
    rungs: list[Rung] = field(default_factory=list)
    challenger: str | None = None
    confirmed: bool = False
    refined: dict[str, int | None] = field(default_factory=dict)

    def run(self, candidates: Sequence[str]) -> str:
        """Race the candidates, of which the first is the incumbent; return the winner."""
        incumbent, *left = candidates
        for number, (check_ins, challengers) in enumerate(self.schedule.rungs):
            racing = [incumbent, *left[:challengers]]
            order = racing
            if check_ins:
                order = self._standing(racing, check_ins)
            left = [name for name in order if name != incumbent]
            kept = order[:1]
            if number + 1 < len(self.schedule.rungs):
                going_on = {incumbent, *left[: self.schedule.rungs[number + 1][1]]}
                kept = [name for name in order if name in going_on]
            self.rungs.append(Rung(check_ins, tuple(order), tuple(kept)))
            self.on_rung(self.rungs[-1])
        (best,) = kept
        if best == incumbent:
            return incumbent
        self.challenger = best
        self.confirmed = self._ahead_over_seeds(best, incumbent)
        return best if self.confirmed else incumbent

    def refine(self, winner: str, refinements: Sequence[str]) -> str:
        """Try refinements of the winner, one by one; return the winner of all."""
        for name in refinements[: self.schedule.refined]:
            self.refined[name] = self._fell_behind(name, winner)
            if self.refined[name] is None:
                winner = name
        return winner

    def _standing(self, names: Sequence[str], check_ins: int) -> list[str]:
        """Return candidates by how they do with the first seed."""
        curves = self.curves([(name, False) for name in names], check_ins)
        return standing(dict(zip(names, curves, strict=True)))

    def _fell_behind(self, name: str, winner: str) -> int | None:
        """Return the check-in at which a refinement fell behind the winner; None if never."""
        for rung in self.rungs:
            if self._standing([winner, name], rung.check_ins)[0] != name:
                return rung.check_ins
        return None if self._ahead_over_seeds(name, winner) else self.rungs[-1].check_ins

    def _ahead_over_seeds(self, name: str, other: str) -> bool:
        """Whether a candidate is clearly ahead on the last rung, by the mean of both seeds."""
        entries = [(each, again) for each in (name, other) for again in (False, True)]
        ours, our_second, theirs, their_second = self.curves(entries, self.rungs[-1].check_ins)
        return clearly_ahead(_mean_curve([ours, our_second]), _mean_curve([theirs, their_second]))
