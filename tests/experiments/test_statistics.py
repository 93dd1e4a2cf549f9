from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranp.experiments.statistics import (
    Difference,
    compare_paired,
    conclude,
    describe_difference,
    holm,
    least_flip_p,
    sign_flip_test,
    summarise,
    t_cdf,
    t_quantile,
    t_test,
)

# Hours of sleep gained, second drug less first, in ten patients: Student's own example (1908).
SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]


# Tables of the t distribution, as printed in textbooks.
@pytest.mark.parametrize(
    ("p", "df", "t"),
    [
        (0.975, 1, 12.706205),
        (0.975, 2, 4.302653),
        (0.975, 3, 3.182446),
        (0.975, 4, 2.776445),
        (0.975, 9, 2.262157),
        (0.975, 30, 2.042272),
        (0.975, 120, 1.979930),
        (0.95, 5, 2.015048),
        (0.995, 10, 3.169273),
        (0.9995, 2, 31.599055),
    ],
)
def test_quantiles_are_those_of_the_tables(p, df, t):
    assert t_quantile(p, df) == pytest.approx(t, abs=2e-6)
    assert t_cdf(t, df) == pytest.approx(p, abs=1e-7)


@given(st.floats(-50, 50))
def test_with_one_and_two_degrees_of_freedom_there_are_formulas(t):
    assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-12)
    assert t_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-12)


def test_students_own_example():
    difference = compare_paired(SLEEP, [0.0] * 10)
    assert difference.summary.mean == pytest.approx(1.58)
    assert difference.summary.std == pytest.approx(1.229995, abs=1e-6)
    assert difference.summary.low == pytest.approx(0.7001142, abs=1e-6)
    assert difference.summary.high == pytest.approx(2.4598858, abs=1e-6)
    assert difference.p == pytest.approx(0.002832890, abs=1e-8)
    # Nobody slept worse, and one slept the same: 4 of the 1024 signs are as far from zero.
    assert difference.p_flip == 4 / 1024


def test_a_single_seed_has_no_spread():
    summary = summarise([0.8])
    assert (summary.n, summary.mean) == (1, 0.8)
    assert summary.std is None and summary.low is None and summary.high is None
    assert t_test([0.1]) is None


def test_seeds_that_agree_exactly():
    assert t_test([0.0, 0.0, 0.0]) == 1.0
    assert t_test([0.25, 0.25, 0.25]) == 0.25 == least_flip_p(3)
    assert t_test([0.1 + 0.2, 0.3]) == 0.5  # the same but for rounding
    difference = compare_paired([0.5, 0.75], [0.25, 0.5])
    assert describe_difference("race", "thin", difference) == (
        "race is 25.00 points above thin (the same each time, so their spread is not known, "
        "2 seeds, p = 0.5): not shown to differ."
    )
    assert sign_flip_test([0.0, 0.0, 0.0]) == 1.0


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=8))
def test_sign_flips_are_counted(values):
    flips = itertools.product((1, -1), repeat=len(values))
    as_far = [abs(sum(s * v for s, v in zip(signs, values, strict=True))) for signs in flips]
    expected = sum(each >= abs(sum(values)) for each in as_far) / len(as_far)
    assert sign_flip_test([v / 1000 for v in values]) == expected


def test_three_seeds_give_no_smaller_p_than_a_quarter():
    assert sign_flip_test([5.0, 6.0, 7.0]) == 0.25 == least_flip_p(3)
    assert least_flip_p(5) > 0.05 > least_flip_p(6)
    assert sign_flip_test([1.0] * 41) is None


@pytest.mark.parametrize(("n", "against"), [(24, 5), (25, 0), (40, 12)])
def test_sign_flips_of_many_equal_differences_are_binomial(n, against):
    as_few = sum(math.comb(n, k) for k in range(against + 1)) / 2**n
    found = sign_flip_test([0.3] * (n - against) + [-0.3] * against)
    assert found == pytest.approx(2 * as_few, rel=1e-12)


def test_holm_by_hand():
    # 4 x 0.005, 3 x 0.01, 2 x 0.03, and 1 x 0.04, which must not be below the one before it.
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert corrected == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(corrected) == ["a", "b", "c", "d"]
    assert holm({}) == {}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_finds_no_less_than_bonferroni_and_no_more_than_no_correction(p_values):
    named = dict(zip("abcdef", p_values, strict=False))
    for name, corrected in holm(named).items():
        assert named[name] <= corrected
    smallest = min(named, key=named.__getitem__)
    assert holm(named)[smallest] == min(1.0, len(named) * named[smallest])


def differences(**means_and_p: tuple[float, float | None]) -> dict[str, Difference]:
    """Methods with a mean difference of so much and a corrected p of so much, over three seeds."""
    found = {}
    for name, (mean, p) in means_and_p.items():
        found[name] = Difference(summarise([mean] * (1 if p is None else 3)), p, 0.25, p)
    return found


@pytest.mark.parametrize(
    ("cases", "seeds", "said"),
    [
        (
            differences(random=(-0.2, 0.01)),
            3,
            "3 seeds support that ranp-f is more accurate than random (paired",
        ),
        (
            differences(full=(0.1, 0.01), layerwise=(0.05, 0.049)),
            3,
            "3 seeds support that ranp-f is less accurate than full and layerwise (paired",
        ),
        (
            differences(full=(0.1, 0.01), random=(-0.3, 0.02), magnitude=(-0.1, 0.3)),
            3,
            "that ranp-f is more accurate than random and less accurate than full, "
            "and not that it is better or worse than magnitude (paired t-test, Holm-corrected over "
            "3 methods, 5 %); 3 seeds cannot show it without the assumption that differences are "
            "normal, as the sign-flip test's p is at least 0.25.",
        ),
        (
            differences(random=(-0.2, 0.05), weighted=(0.2, 1.0)),
            3,
            "3 seeds support no statement that ranp-f is more or less accurate than random or "
            "weighted (paired",
        ),
        (
            differences(random=(-0.2, None)),
            1,
            "One seed cannot support any statement on whether ranp-f is more or less accurate",
        ),
        ({}, 3, "Nothing was trained that ranp-f could be compared with."),
    ],
    ids=["clear win", "clear loss", "both", "undecided", "too few seeds", "alone"],
)
def test_what_the_data_support(cases, seeds, said):
    sentence = conclude("ranp-f", cases, seeds)
    assert said in sentence
    assert sentence.endswith(".") and sentence.count(". ") == 0


def test_with_enough_seeds_nothing_needs_to_be_assumed():
    six = {"random": Difference(summarise([-0.2] * 6), 0.01, 0.03, 0.01)}
    assert "assumption" not in conclude("ranp-f", six, 6)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.01, 0.011, 0.012], "1.10 points above thin"),
        ([0.01, 0.011, 0.012], "shown to be more accurate."),
        ([-0.01, -0.011, -0.012], "shown to be less accurate."),
        ([0.01, -0.01, 0.005], "not shown to differ."),
        ([0.01], "with one seed, which supports no statement"),
    ],
)
def test_a_difference_in_one_sentence(values, said):
    difference = compare_paired(values, [0.0] * len(values))
    assert said in describe_difference("ranp-f", "thin", difference)


def test_the_corrected_p_counts():
    difference = replace(compare_paired([0.01, 0.02, 0.015], [0, 0, 0]), p_holm=0.9)
    assert difference.p < 0.05
    assert "p = 0.9): not shown to differ" in describe_difference("ranp-f", "thin", difference)
