"""Statistics of a few seeds: intervals, paired tests, and a sentence on what they support.

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
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
"""Level of significance; intervals hold 1 - LEVEL."""

MOST_FLIPPED = 40
"""Number of seeds up to which all sign flips are counted: a million for each half of them."""


@dataclass(frozen=True)
class Summary:
    """Summary of the values of several seeds.

    Attributes:
        n: Number of values.
        mean: Mean of the values.
        std: Sample standard deviation (n - 1); None for a single value.
        low: Lower end of the 95 % t-interval of the mean; None for a single value.
        high: Upper end of the interval.
    """

    n: int
    mean: float
    std: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference:
    """Difference between a method and the reference, paired by seed.

    Attributes:
        summary: Summary of the differences, method minus reference.
        p: Two-sided p of the paired t-test; None with fewer than two seeds.
        p_flip: Two-sided p of the exact sign-flip test; None beyond `MOST_FLIPPED` seeds.
        p_holm: `p` corrected for the number of methods that are compared with the reference.
    """

    summary: Summary
    p: float | None
    p_flip: float | None
    p_holm: float | None = None

    def to_dict(self) -> dict[str, float | None]:
        """Return summary and p-values as plain values."""
        tests = {"p": self.p, "p_flip": self.p_flip, "p_holm": self.p_holm}
        return {**asdict(self.summary), **tests}


def summarise(values: Sequence[float]) -> Summary:
    r"""Return mean, deviation and the interval :math:`m \pm t_{0.975, n-1} s / \sqrt{n}`."""
    n, mean = len(values), statistics.fmean(values)
    if n < 2:
        return Summary(n, mean, None, None, None)
    std = statistics.stdev(values)
    half = t_quantile(1 - LEVEL / 2, n - 1) * std / math.sqrt(n)
    return Summary(n, mean, std, mean - half, mean + half)


def compare_paired(method: Sequence[float], reference: Sequence[float]) -> Difference:
    """Return the difference between two methods, whose accuracies are in the order of the seeds."""
    differences = [a - b for a, b in zip(method, reference, strict=True)]
    return Difference(summarise(differences), t_test(differences), sign_flip_test(differences))


def t_test(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of the paired t-test; None with fewer than two differences.

    Differences that are all the same have no spread to compare their mean with: a metric comes in
    steps, so a few seeds can agree by chance. Their p is that of the sign-flip test.
    """
    summary = summarise(differences)
    if summary.std is None:
        return None
    if _agree(summary):
        return 1.0 if summary.mean == 0 else least_flip_p(summary.n)
    t = abs(summary.mean) / (summary.std / math.sqrt(summary.n))
    return 2 * (1 - t_cdf(t, summary.n - 1))


def _agree(summary: Summary) -> bool:
    """Return whether several values are the same, but for rounding."""
    return summary.std is not None and summary.std <= 1e-9 * abs(summary.mean)


def sign_flip_test(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of the exact sign-flip test, over all 2^n combinations of signs.

    The p is the share of them whose sum is at least as far from zero as the one observed. They are
    counted, not listed: for each sum of one half, those of the other half that reach far enough.
    """
    n = len(differences)
    if n > MOST_FLIPPED:
        return None
    values = np.asarray(differences, np.float64)
    # Sums of the same numbers in another order differ in the last bits, and are the same.
    far = abs(float(values.sum())) - 1e-12 * float(np.abs(values).sum())
    if far <= 0:
        return 1.0
    half, other = _signed_sums(values[: n // 2]), np.sort(_signed_sums(values[n // 2 :]))
    reaching = len(other) - np.searchsorted(other, far - half)
    return 2 * float(reaching.sum()) / 2.0**n  # as many sums are as far on the other side


def _signed_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums of values with all combinations of signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def least_flip_p(n: int) -> float:
    """Return the smallest p that n seeds can give in the sign-flip test."""
    return float(2.0 ** (1 - n)) if n else 1.0


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values after Holm's correction, which controls the family-wise error rate."""
    corrected: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}


def describe_difference(method: str, other: str, difference: Difference) -> str:
    """Return one sentence: how far a method is from another, in points, and how sure.

    The p-value is the corrected one, if there is one.
    """
    summary = difference.summary
    p = difference.p if difference.p_holm is None else difference.p_holm
    points = 100 * summary.mean
    apart = f"{abs(points):.2f} points {'below' if points < 0 else 'above'} {other}"
    if summary.low is None or summary.high is None or p is None:
        return (
            f"{method} is {apart} with one seed, which supports no statement on whether they "
            "differ."
        )
    if p < LEVEL:
        shown = "shown to be more accurate" if points > 0 else "shown to be less accurate"
    else:
        shown = "not shown to differ"
    interval = f"95 % interval {100 * summary.low:+.2f} to {100 * summary.high:+.2f}"
    spread = "the same each time, so their spread is not known" if _agree(summary) else interval
    return f"{method} is {apart} ({spread}, {_seeds(summary.n)}, p = {p:.2g}): {shown}."


def conclude(reference: str | None, differences: Mapping[str, Difference], seeds: int) -> str:
    """Return a sentence on what the data support about the reference, and what they do not.

    The differences are those of the others from it; the seeds are those that it was trained with.
    """
    if reference is None or not seeds:
        return f"{reference or 'Nothing'} has no result at this budget: nothing can be said."
    if not differences:
        return f"Nothing was trained that {reference} could be compared with."
    tested = {name: each for name, each in differences.items() if each.p_holm is not None}
    if not tested:
        return (
            f"{_seeds(seeds)} cannot support any statement on whether {reference} is more or less "
            "accurate: differences between seeds are unknown; take at least three."
        )
    significant = {
        name: each.summary.mean for name, each in tested.items() if (each.p_holm or 0.0) < LEVEL
    }
    worse = [name for name, mean in significant.items() if mean < 0]
    better = [name for name, mean in significant.items() if mean > 0]
    undecided = [name for name in differences if name not in significant]
    claims = []
    if worse:
        claims.append(f"more accurate than {_listed(worse)}")
    if better:
        claims.append(f"less accurate than {_listed(better)}")
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
    methods = "1 method" if len(tested) == 1 else f"{len(tested)} methods"
    sentence += f" (paired t-test, Holm-corrected over {methods}, 5 %)"
    smallest = min(each.summary.n for each in tested.values())
    least = least_flip_p(smallest)
    if least >= LEVEL:
        sentence += (
            f"; {smallest} seeds cannot show it without the assumption that differences are "
            f"normal, as the sign-flip test's p is at least {least:g}"
        )
    return sentence + "."


def _seeds(n: int) -> str:
    return "One seed" if n == 1 else f"{n} seeds"


def _listed(names: Sequence[str], word: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def t_cdf(t: float, df: int) -> float:
    r"""Return Student's distribution function, by its finite sum (Abramowitz and Stegun, 26.7.3-4).

    With :math:`\theta = \arctan(t / \sqrt{\nu})`, the probability between -t and t is
    :math:`\sin\theta (1 + \frac12 \cos^2\theta + \frac{1 \cdot 3}{2 \cdot 4} \cos^4\theta
    + \dots)` for even degrees of freedom :math:`\nu`, and :math:`\frac{2}{\pi} (\theta + \sin\theta
    (\cos\theta + \frac23 \cos^3\theta + \dots))` for odd; the last power is :math:`\nu - 2`.
    """
    theta, odd = math.atan(t / math.sqrt(df)), df % 2
    total, term = 0.0, math.cos(theta) if odd else 1.0
    for power in range(odd, df - 1, 2):
        total += term
        term *= math.cos(theta) ** 2 * (power + 1) / (power + 2)
    between = math.sin(theta) * total
    if odd:
        between = 2 / math.pi * (theta + between)
    return 0.5 + between / 2


def t_quantile(p: float, df: int) -> float:
    """Return the value at which Student's distribution function reaches p > 0.5, by bisection."""
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2
