"""Stops scoring when the kept neurons no longer change."""

from __future__ import annotations

from collections.abc import Callable

from ranp.graph import Alive
from ranp.pruning.scores import Scores


class Settled:
    """Says after a batch whether the choice of neurons has settled.

    The noise of an average over t batches falls as 1/t (in variance). The estimates after t/2 and
    after t batches differ by as much, on average, as the one after t differs from one after
    infinitely many. So the share of kept neurons on which the two agree says how good the choice
    already is, and scoring stops when it reaches `agreement`.

    Attributes:
        reached: The agreement at the last look.
    """

    def __init__(
        self, choose: Callable[[Scores], Alive], agreement: float = 0.985, at_least: int = 4
    ) -> None:
        """Sets the rule.

        Args:
            choose: From scores to the living channels, at the sparsity that is wanted.
            agreement: The share of kept channels that must be the same.
            at_least: No look before so many batches.
        """
        self._choose = choose
        self._wanted = agreement
        self._at_least = at_least
        self._history: list[Alive] = []
        self.reached = 0.0

    def __call__(self, scores: Scores) -> bool:
        """Takes note of the choice after a batch."""
        alive = self._choose(scores)
        self._history.append(alive)
        batches = len(self._history)
        if batches < self._at_least or batches % 2:
            return False
        before = self._history[batches // 2 - 1]
        self.reached = float((alive & before).sum() / max(alive.sum(), 1))
        return self.reached >= self._wanted
