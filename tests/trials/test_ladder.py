"""The race: its schedule, its order and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranp.errors import UsageError
from ranp.trials.ladder import (
    Ladder,
    Schedule,
    clearly_ahead,
    least_cost,
    make_schedule,
    parse_cost,
    standing,
)


def lines(*metrics: float, loss: float | None = None) -> list[dict[str, float]]:
    more = {} if loss is None else {"loss": loss}
    return [{"dice": value, **more} for value in metrics]


def test_half_of_the_candidates_go_twice_as_far() -> None:
    schedule = make_schedule(8, length=1000, cost=0.081)
    assert schedule.rungs == ((3, 7), (6, 4), (12, 2))
    # 7 x 3, then 4 x 3 more, then 2 x 6 more; the first candidate goes to 12, and two of them are
    # trained to 12 once more
    assert schedule.check_ins == 21 + 12 + 12 + 12 + 24
    assert schedule.cost == 0.081
    assert schedule.refined == 0


def test_what_is_left_of_the_cost_makes_the_last_rung_longer() -> None:
    # a check-in more on the last rung costs five: two challengers, the first candidate, and two
    # with another seed; of the 90 that 9 % are, 81 + 5 are used
    assert make_schedule(8, length=1000, cost=0.09).rungs == ((3, 7), (6, 4), (13, 2))


def test_what_is_left_when_the_last_rung_is_a_whole_training_goes_to_refinements() -> None:
    schedule = make_schedule(4, length=2, cost=9)
    # 2 x 3 + 2 + 2 x 2 of 18 check-ins; of the 6 that are left, each refinement takes 4
    assert schedule.rungs == ((2, 3),)
    assert schedule.refined == 1
    assert schedule.check_ins == 6 + 2 + 4 + 4


def test_candidates_are_left_out_where_the_cost_does_not_allow_all() -> None:
    assert make_schedule(8, length=80, cost=0.05).rungs == ((1, 1),)


def test_a_cost_that_allows_no_race_is_refused_with_one_that_does() -> None:
    with pytest.raises(UsageError, match=r"at least 40 % .* two .*, and 120 % for all 5, got 5 %;"):
        make_schedule(5, length=10, cost=0.05)


def test_two_candidates_are_not_counted_twice() -> None:
    # each of them is trained for a check-in with both seeds: 4 of 10 check-ins
    with pytest.raises(UsageError, match=r"at least 40 % .* two candidates, got 5 %; give that"):
        make_schedule(2, length=10, cost=0.05)


@given(candidates=st.integers(2, 20), length=st.integers(80, 5000))
def test_at_the_least_cost_all_candidates_race(candidates: int, length: int) -> None:
    cost = least_cost(candidates, length)
    assert make_schedule(candidates, length, cost).rungs[0][1] == candidates - 1
    if cost - 0.002 >= least_cost(2, length):
        assert make_schedule(candidates, length, cost - 0.002).rungs[0][1] < candidates - 1


@given(candidates=st.integers(2, 20), length=st.integers(80, 5000), cost=st.floats(0.05, 2))
def test_the_cost_is_kept(candidates: int, length: int, cost: float) -> None:
    schedule = make_schedule(candidates, length, cost)
    assert schedule.check_ins <= cost * length + 1e-6
    assert schedule.rungs[0][1] < candidates
    assert schedule.rungs[-1][0] <= length
    *others, (last, challengers) = schedule.rungs
    further = Schedule((*others, (last + 1, challengers)), 0, length)
    assert last == length or further.check_ins > cost * length  # nothing is left for a check-in


def test_the_loss_decides_among_those_whose_metric_is_near_the_best() -> None:
    curves = {
        "a": lines(0.0, 0.1, loss=0.2),  # far behind by its metric
        "b": lines(0.0, 0.5, loss=0.6),
        "c": lines(0.0, 0.46, loss=0.5),
    }
    assert standing(curves) == ["c", "b", "a"]


def test_a_metric_below_zero_is_compared_by_its_distance_from_the_best() -> None:
    curves = {
        "a": lines(-3.0, -1.0, loss=0.9),
        "b": lines(-3.0, -1.05, loss=0.5),
        "c": lines(-3.0, -1.2, loss=0.1),
    }
    assert standing(curves) == ["b", "a", "c"]


def test_a_class_that_is_missed_weighs_more_than_a_hair_of_loss() -> None:
    curves = {"a": lines(0.2, 0.41, loss=0.59), "b": lines(0.2, 0.78, loss=0.60)}
    assert standing(curves) == ["b", "a"]


@pytest.mark.parametrize(
    "at_last", [[], [0.10], [0.12]], ids=["one check-in", "it fell", "another began higher"]
)
def test_a_metric_that_has_not_risen_leaves_it_to_the_loss(at_last: list[float]) -> None:
    curves = {
        "a": lines(0.11, *at_last, loss=2.6),
        "b": lines(0.09, *[value - 0.05 for value in at_last], loss=2.4),
        "c": lines(0.12, *at_last, loss=2.5),
    }
    assert standing(curves) == ["b", "c", "a"]
    assert not clearly_ahead(curves["c"], curves["b"])


def test_of_equal_metrics_the_smaller_loss_counts() -> None:
    assert standing({"a": lines(0.5, loss=0.6), "b": lines(0.5, loss=0.5)}) == ["b", "a"]


def test_a_curve_is_judged_by_its_second_half() -> None:
    assert standing({"a": lines(0.9, 0.9, 0.1, 0.1), "b": lines(0.0, 0.0, 0.2, 0.2)})[0] == "b"


def test_what_diverged_sets_no_mark_for_the_others() -> None:
    curves = {
        "bad": lines(0.1, 0.2, 0.3, 0.3, loss=0.8),
        "good": lines(0.1, 0.2, 0.6, 0.6, loss=0.9),
        "lucky": lines(0.1, 0.7, loss=1.0),  # and then it diverged
    }
    assert standing(curves) == ["good", "bad", "lucky"]
    below_zero = {"bad": lines(-0.6, -0.4, loss=0.8), "good": lines(-0.5, -0.1, loss=0.9)}
    assert standing({**below_zero, "none": []}) == ["good", "bad", "none"]


def test_what_diverged_comes_last() -> None:
    curves = {"a": lines(0.9), "b": lines(0.0, 0.0), "c": []}
    assert standing(curves)[0] == "b"


@pytest.mark.parametrize(
    ("curve", "other", "ahead"),
    [
        (lines(0.2, 0.80), lines(0.2, 0.71), True),  # by more than a tenth: 0.80 - 0.08 = 0.72
        (lines(0.2, 0.80), lines(0.2, 0.73), False),
        (lines(0.80, loss=0.6), lines(0.80, loss=0.7), True),  # the loss by more than 0.07
        (lines(0.80, loss=0.64), lines(0.80, loss=0.7), False),
        (lines(0.79, loss=0.3), lines(0.80, loss=0.7), False),  # sure of itself, and no better
        (lines(0.2, 0.80, loss=0.9), lines(0.2, 0.71, loss=0.7), True),
        (lines(-3.0, -1.0), lines(-3.0, -1.2), True),
        (lines(0.1, 0.1), lines(0.9), True),  # the other one diverged
        ([], [], False),
    ],
)
def test_ahead_is_what_luck_does_not_explain(
    curve: list[dict[str, float]], other: list[dict[str, float]], ahead: bool
) -> None:
    assert clearly_ahead(curve, other) == ahead
    assert not (ahead and clearly_ahead(other, curve))


class Fixed:
    """Candidates whose metric is known; counts what is trained, with each of the two seeds."""

    def __init__(self, other_seed: dict[str, float] | None = None, **metrics: float) -> None:
        self.metrics = {False: metrics, True: metrics | (other_seed or {})}
        self.trained: dict[str, int] = {}
        self.again: dict[str, int] = {}

    def __call__(
        self, entries: Sequence[tuple[str, bool]], check_ins: int
    ) -> list[list[dict[str, float]]]:
        return [self.curve(name, check_ins, again) for name, again in entries]

    def curve(self, name: str, check_ins: int, again: bool) -> list[dict[str, float]]:
        trained = self.again if again else self.trained
        trained[name] = max(check_ins, trained.get(name, 0))
        metric = self.metrics[again][name]
        return lines(metric / 2, *[metric] * (check_ins - 1))


def test_the_best_wins_and_the_others_stop_where_they_are_dropped() -> None:
    curve = Fixed(a=0.1, b=0.4, c=0.3, d=0.2)
    ladder = Ladder(Schedule(((1, 3), (2, 2)), 0, 10), curve)
    assert ladder.run("abcd") == "b"
    assert [rung.standing for rung in ladder.rungs] == [("b", "c", "d", "a"), ("b", "c", "a")]
    assert [rung.kept for rung in ladder.rungs] == [("b", "c", "a"), ("b",)]
    assert (ladder.challenger, ladder.confirmed) == ("b", True)
    assert curve.trained == {"a": 2, "b": 2, "c": 2, "d": 1}
    assert curve.again == {"a": 2, "b": 2}
    assert sum(curve.trained.values()) + sum(curve.again.values()) == ladder.schedule.check_ins


def test_a_challenger_that_another_seed_does_not_confirm_has_won_by_luck() -> None:
    curve = Fixed({"a": 0.5, "b": 0.05}, a=0.1, b=0.4, c=0.3)
    ladder = Ladder(Schedule(((1, 2), (2, 2)), 0, 10), curve)
    assert ladder.run("abc") == "a"
    assert (ladder.challenger, ladder.confirmed) == ("b", False)


def test_the_first_candidate_stays_where_another_is_ahead_by_a_hair() -> None:
    curve = Fixed(a=0.80, b=0.81, c=0.3)
    ladder = Ladder(Schedule(((1, 2), (2, 2)), 0, 10), curve)
    assert ladder.run("abc") == "a"
    assert (ladder.challenger, ladder.confirmed) == ("b", False)


def test_a_class_missed_with_one_seed_weighs_more_than_a_hair_with_the_other() -> None:
    curve = Fixed({"a": 0.83, "b": 0.82}, a=0.41, b=0.8, c=0.3)
    ladder = Ladder(Schedule(((1, 2), (2, 2)), 0, 10), curve)
    assert ladder.run("abc") == "b"
    assert (ladder.challenger, ladder.confirmed) == ("b", True)


def test_the_first_candidate_is_no_challenger() -> None:
    curve = Fixed(a=0.4, b=0.1, c=0.2, d=0.3)
    ladder = Ladder(Schedule(((1, 3), (2, 2)), 0, 10), curve)
    assert ladder.run("abcd") == "a"
    assert ladder.rungs[0].kept == ("a", "d", "c")  # the better two of three, whoever leads


def test_the_first_candidate_needs_no_second_seed() -> None:
    curve = Fixed(a=0.4, b=0.1)
    ladder = Ladder(Schedule(((1, 1),), 0, 10), curve)
    assert ladder.run("ab") == "a"
    assert ladder.challenger is None
    assert not curve.again


def test_a_refinement_must_beat_the_winner_at_every_rung_and_over_both_seeds() -> None:
    curve = Fixed({"lucky": 0.0}, a=0.1, b=0.4, worse=0.3, lucky=0.7, better=0.5, untried=0.9)
    ladder = Ladder(Schedule(((1, 1), (2, 1)), 3, 10), curve)
    winner = ladder.run("ab")
    assert ladder.refine(winner, ["worse", "lucky", "better", "untried"]) == "better"
    assert ladder.refined == {"worse": 1, "lucky": 2, "better": None}
    assert curve.trained["worse"] == 1
    total = sum(curve.trained.values()) + sum(curve.again.values())
    assert total <= ladder.schedule.check_ins


@pytest.mark.parametrize(("cost", "share"), [(0.05, 0.05), ("5%", 0.05), ("400 %", 4.0), (2, 2.0)])
def test_a_cost_is_a_share_of_the_training_that_follows(cost: float | str, share: float) -> None:
    assert parse_cost(cost) == share


@pytest.mark.parametrize("cost", [0, -1, "a lot", "%", "", None, float("nan"), "inf"])
def test_a_cost_that_is_none_is_refused(cost: Any) -> None:
    with pytest.raises(UsageError, match=r"such as 0\.05, 5% or 400%, got "):
        parse_cost(cost)
