"""What a handful of seeds can tell: intervals, paired tests, and a sentence on what they support.

Runs are paired by seed: two methods with the same seed begin with the same scores, crops and order
of samples, so their difference varies less than either of them. The t-test assumes that the
differences are normal, which a few seeds cannot show; the sign-flip test beside it assumes only
that a difference could as well have had the other sign, and pays for it: with n seeds its p is
2 / 2^n at the least, which is below 5 % from six seeds on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05
"""What counts as shown; intervals hold 1 - LEVEL."""

MOST_FLIPPED = 20
"""Up to so many seeds all sign flips are tried: about a million."""


@dataclass(frozen=True)
class Summary:
    """Values of several seeds.

    Attributes:
        n: How many.
        mean: Their mean.
        std: Sample standard deviation (n - 1); none for a single value.
        low: Lower end of the 95 % t-interval of the mean; none for a single value.
        high: Upper end.
    """

    n: int
    mean: float
    std: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference:
    """A method against the reference, seed by seed.

    Attributes:
        summary: Of the differences, method less reference.
        p: Of the paired t-test, two-sided; none with fewer than two seeds.
        p_flip: Of the exact sign-flip test, two-sided; none beyond `MOST_FLIPPED` seeds.
        p_holm: `p`, corrected for the number of methods that are compared with the reference.
    """

    summary: Summary
    p: float | None
    p_flip: float | None
    p_holm: float | None = None


def summarise(values: Sequence[float]) -> Summary:
    r"""Mean, standard deviation and the interval :math:`m \pm t_{0.975, n-1} s / \sqrt{n}`."""
    n, mean = len(values), statistics.fmean(values)
    if n < 2:
        return Summary(n, mean, None, None, None)
    std = statistics.stdev(values)
    half = t_quantile(1 - LEVEL / 2, n - 1) * std / math.sqrt(n)
    return Summary(n, mean, std, mean - half, mean + half)


def compare_paired(method: Sequence[float], reference: Sequence[float]) -> Difference:
    """The differences of two methods over the same seeds.

    Args:
        method: Accuracy by seed.
        reference: The same of the reference, in the same order.
    """
    differences = [a - b for a, b in zip(method, reference, strict=True)]
    return Difference(summarise(differences), t_test(differences), sign_flip_test(differences))


def t_test(differences: Sequence[float]) -> float | None:
    """The two-sided p of the paired t-test; none with fewer than two differences."""
    summary = summarise(differences)
    if summary.std is None:
        return None
    if summary.std == 0:
        return 1.0 if summary.mean == 0 else 0.0
    t = abs(summary.mean) / (summary.std / math.sqrt(summary.n))
    return 2 * (1 - t_cdf(t, summary.n - 1))


def sign_flip_test(differences: Sequence[float]) -> float | None:
    """The two-sided p of the exact sign-flip test: all 2^n ways in which signs could have fallen.

    The p is the share of them whose sum lies at least as far from zero as what was observed.
    """
    n = len(differences)
    if n > MOST_FLIPPED:
        return None
    values = np.asarray(differences, np.float64)
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    # Sums of the same numbers in another order differ in the last bits, and are the same.
    tolerance = 1e-12 * float(np.abs(values).sum())
    return float(np.mean(np.abs(sums) >= abs(float(values.sum())) - tolerance))


def least_flip_p(n: int) -> float:
    """The smallest p that n seeds can give in the sign-flip test."""
    return float(2.0 ** (1 - n)) if n else 1.0


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction: the chance of any false finding among all of them stays below the level.

    Args:
        p_values: By name.
    """
    corrected: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda each: p_values[each])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}


def conclude(reference: str, differences: Mapping[str, Difference], seeds: int) -> str:
    """One sentence: what the data support about the reference, and what they do not.

    Args:
        reference: The method that the others are compared with.
        differences: Of the others against it, with `p_holm`.
        seeds: How many seeds there are in the comparison.
    """
    if not differences:
        return f"Nothing was trained that {reference} could be compared with."
    tested = {name: each for name, each in differences.items() if each.p_holm is not None}
    if not tested:
        return (
            f"{_seeds(seeds)} cannot support any statement on whether {reference} is more or less "
            "accurate: differences between seeds are unknown; take at least three."
        )
    found = {name for name, each in tested.items() if (each.p_holm or 0.0) < LEVEL}
    worse = [name for name in found if tested[name].summary.mean < 0]
    better = [name for name in found if tested[name].summary.mean > 0]
    undecided = [name for name in differences if name not in found]
    order = list(differences)
    claims = []
    if worse:
        claims.append(f"more accurate than {_listed(sorted(worse, key=order.index))}")
    if better:
        claims.append(f"less accurate than {_listed(sorted(better, key=order.index))}")
    head = f"{_seeds(seeds)} {'supports' if seeds == 1 else 'support'} "
    if claims:
        sentence = f"{head}that {reference} is {' and '.join(claims)}"
        if undecided:
            sentence += f", and not that it is better or worse than {_listed(undecided)}"
    else:
        sentence = (
            f"{head}no statement that {reference} is more or less accurate than "
            f"{_listed(undecided, 'or')}"
        )
    sentence += f" (paired t-test, Holm-corrected over {_count(len(tested), 'method')}, 5 %)"
    smallest = min(each.summary.n for each in tested.values())
    least = least_flip_p(smallest)
    if least >= LEVEL:
        sentence += (
            f"; {smallest} seeds cannot show it without the assumption that differences are "
            f"normal, as the sign-flip test's p is {least:g} at the least"
        )
    return sentence + "."


def _seeds(n: int) -> str:
    return "One seed" if n == 1 else f"{n} seeds"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _listed(names: Sequence[str], word: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def t_cdf(t: float, df: int) -> float:
    r"""Student's distribution: half of :math:`I_{t^2 / (\nu + t^2)}(1/2, \nu/2)` away from 1/2.

    Args:
        t: Where.
        df: Degrees of freedom :math:`\nu`.
    """
    return 0.5 + math.copysign(0.5 * _incomplete_beta(t * t / (df + t * t), 0.5, df / 2), t)


def t_quantile(p: float, df: int) -> float:
    """Where Student's distribution reaches p, by bisection.

    Args:
        p: Between 0.5 and 1.
        df: Degrees of freedom.
    """
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return front / a * _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """1 / (1 + d_1 / (1 + d_2 / (1 + ...))), by Lentz's method, which wants a 1 in front of it."""
    c, d, value = 1.0, 0.0, 1.0
    for i in range(400):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / _not_zero(1 + term * d)
        c = _not_zero(1 + term / c)
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value - 1


def _not_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300
