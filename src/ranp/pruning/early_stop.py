"""Stop scoring when the kept neurons no longer change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, inf

from ranp.graph import Alive
from ranp.pruning.distributed import all_reduce_min
from ranp.pruning.scores import Scores

AGREEMENT = 0.98
"""Default share of kept channels that must be the same."""

MIN_BATCHES, MAX_BATCHES = 8, 16
"""Default numbers of batches between which scoring stops."""

_FINEST = 1e-3
"""Smallest share of channels in the forecast of the number of batches."""


class StabilityStop:
    """Decides after each batch whether the choice of neurons has become stable.

    What an average over t batches is off by falls as 1/sqrt(t), and so does the share of neurons
    that is chosen differently: after s and after t batches by about c sqrt(1/s - 1/t). With s = t/2
    that is c / sqrt(t), just what the choice after t differs by from that of endless batches. So
    the agreement of these two estimates how final the choice is. Scoring stops when it is
    `agreement` of the kept channels, and in any case after `at_most` batches: from there on it
    grows so slowly (see the method card) that one should say how many batches one wants.

    Attributes:
        reached: The agreement at the last look; None before the first.
        needed: The batches that would reach the agreement that is wanted, by the law above, as
            seen at the last look; as many as were scored if it was reached, None before the first.
    """

    def __init__(
        self,
        choose: Callable[[Scores], Alive],
        agreement: float = AGREEMENT,
        at_least: int = MIN_BATCHES,
        at_most: int = MAX_BATCHES,
    ) -> None:
        """Set the rule; `choose` returns the living channels at the sparsity that is wanted."""
        self._choose = choose
        self._wanted = agreement
        self._at_least = at_least
        self._at_most = at_most
        self._history: list[Alive] = []
        self.reached: float | None = None
        self.needed: int | None = None

    def __call__(self, scores: Scores) -> bool:
        """Compare the choice after a batch with earlier ones; return whether to stop."""
        alive = self._choose(scores)
        self._history.append(alive)
        batches = len(self._history)
        if batches >= self._at_least and batches % 2 == 0:
            before = self._history[batches // 2 - 1]
            self.reached = float((alive & before).sum() / max(alive.sum(), 1))
            off, allowed = 1 - self.reached, 1 - self._wanted
            self.needed = batches
            if self.reached >= self._wanted:
                return True
            self.needed = ceil(batches * (off / max(allowed, _FINEST)) ** 2)
        return batches >= self._at_most

    def annotate(self, scores: Scores) -> Scores:
        """Return the scores, with how far the choice has settled among their settings.

        Of several processes, each of which looked at its own batches, the least settled counts.
        """
        reached, needed = all_reduce_min(
            [
                inf if self.reached is None else self.reached,
                inf if self.needed is None else -self.needed,
            ]
        )
        found = {
            "agreement": None if reached == inf else reached,
            "batches_needed": None if needed == inf else int(-needed),
        }
        return replace(scores, settings={**scores.settings, **found})

    @property
    def verdict(self) -> str:
        """How far the choice has settled, as one sentence."""
        batches = len(self._history)
        if self.reached is None:
            return (
                f"{batches} batches are too few to say how far the choice has settled: "
                f"that takes {self._at_least}."
            )
        agrees = (
            f"after {batches} batches the choice agrees by {100 * self.reached:.1f} % "
            "with that after half as many"
        )
        if self.reached >= self._wanted:
            return f"Settled: {agrees}."
        wanted = f"for {100 * self._wanted:g} % score about {self.needed} batches"
        return f"Not settled: {agrees}; {wanted}."
