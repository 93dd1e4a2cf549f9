"""When scoring stops by itself."""

from __future__ import annotations

import numpy as np
import pytest

from ranp.pruning import Choice, Chooser, StabilityStop
from tests.pruning.nets import classifier, cross_entropy, pictures, score, traced


def stops_after(choices, **options):
    """After how many of the choices the rule says stop, and the agreement it reports."""
    made = iter(choices)
    settled = StabilityStop(lambda scores: next(made), **options)
    for batches in range(1, len(choices) + 1):
        if settled(None):
            return batches, settled.reached
    return None, settled.reached


def stopped(choices, **options):
    """The rule once it has stopped."""
    made = iter(choices)
    settled = StabilityStop(lambda scores: next(made), **options)
    while not settled(None):
        pass
    return settled


def alive(*numbers):
    result = np.zeros(10, bool)
    result[list(numbers)] = True
    return result


def test_a_choice_that_never_changes_stops_at_the_first_look():
    assert stops_after([alive(1, 2, 3)] * 20) == (8, 1.0)
    assert stops_after([alive(1, 2, 3)] * 20, at_least=4) == (4, 1.0)


def test_the_choice_after_half_of_the_batches_counts():
    # The choice changes with the 6th batch: looks at 8 and 10 compare with 4 and 5, that at 12
    # with 6.
    choices = [alive(1, 2)] * 5 + [alive(1, 3)] * 15
    assert stops_after(choices) == (12, 1.0)
    assert stops_after(choices, agreement=0.5) == (8, 0.5)


def test_scoring_stops_in_any_case_and_says_how_well_the_choices_agree():
    changing = [alive(i % 10, (i + 1) % 10) for i in range(30)]
    batches, reached = stops_after(changing)
    assert batches == 16
    assert reached < 0.98
    assert stops_after(changing, at_most=11)[0] == 11


def test_says_how_many_batches_the_wanted_agreement_needs():
    kept = np.arange(100)
    before, after = (np.isin(np.arange(200), kept + shift) for shift in (0, 8))
    settled = stopped([before] * 8 + [after] * 8, at_least=16)
    assert settled.reached == 0.92
    assert settled.needed == 16 * (8 / 2) ** 2  # four times nearer takes sixteen times as many
    assert stopped([before] * 8).needed == 8


def test_the_agreement_is_a_share_of_what_is_kept_now():
    # Two of the four that are kept after 8 batches were kept after 4.
    assert stops_after([alive(1, 2)] * 4 + [alive(1, 2, 3, 4)] * 4, at_most=8) == (8, 0.5)


def test_looks_are_taken_after_even_numbers_of_batches():
    # After 9 the choice would agree with that after 4.
    choices = [alive(1)] * 4 + [alive(2)] * 4 + [alive(1)] * 2
    assert stops_after(choices, at_most=10) == (10, 0.0)
    assert stops_after(choices[:9], at_most=9)[1] == 0.0


def test_a_perfect_agreement_is_forecast_to_a_thousandth():
    before, after = (np.isin(np.arange(200), np.arange(100) + shift) for shift in (0, 1))
    settled = stopped([before] * 4 + [after] * 4, agreement=1.0, at_most=8)
    assert settled.reached == 0.99
    assert settled.needed == pytest.approx(8 * 10**2, abs=1)


def test_says_in_a_line_how_far_it_got():
    few = StabilityStop(lambda scores: alive(1))
    few(None)
    assert few.reached is None
    assert few.needed is None
    assert few.verdict == (
        "1 batches are too few to say how far the choice has settled: that takes 8."
    )
    assert stopped([alive(1, 2)] * 8).verdict == (
        "Settled: after 8 batches the choice agrees by 100.0 % with that after half as many."
    )
    assert stopped([alive(1, 2)] * 4 + [alive(2, 3)] * 4, at_most=8).verdict == (
        "Not settled: after 8 batches the choice agrees by 50.0 % with that after half as many; "
        "for 98 % score about 5000 batches."
    )


def test_choices_of_noisy_scores_differ_as_the_stop_expects():
    """The law behind the rule, on averages of independent noise over 4,000 neurons."""
    rng = np.random.default_rng(0)
    noisy = rng.exponential(size=4000) + rng.normal(0, 0.3, (256, 4000))
    averages = noisy.cumsum(0)

    def chosen(batches):
        return averages[batches - 1] > np.quantile(averages[batches - 1], 0.7824)

    settled = stopped([chosen(batches) for batches in range(1, 17)])
    agrees = (chosen(16) & chosen(256)).sum() / chosen(256).sum()
    assert settled.reached == pytest.approx(agrees, abs=0.01)
    needed = min(settled.needed, 128)
    assert (chosen(needed) & chosen(256)).sum() / chosen(256).sum() >= 0.975


@pytest.mark.parametrize("size", [2, 16])
def test_the_choice_is_near_that_of_many_more_batches(size):
    model = classifier(width=16)
    graph = traced(model, 1, 2, 8, 8)
    data = pictures(64, size)

    def choose(scores):
        return Chooser(model, graph, Choice.make("ranp-f"), scores).choose(0.5)

    settled = StabilityStop(choose)
    few = score(model, graph, data, cross_entropy, enough=settled)
    many = score(model, graph, data, cross_entropy)
    assert 8 <= few.batches <= 16
    assert many.batches == 64
    agreement = (choose(few) & choose(many)).sum() / choose(many).sum()
    assert agreement >= 0.9
    assert agreement >= settled.reached - 0.1
