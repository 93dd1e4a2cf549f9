"""Stops scoring when the kept neurons no longer change."""

from __future__ import annotations

from collections.abc import Callable

from ranp.graph import Alive
from ranp.pruning.scores import Scores


class Settled:
    """Says after a batch whether the choice of neurons has settled.

    The variance of an average over t batches falls as 1/t. So the choices after t/2 and after t
    batches differ by about as much as the one after t/2 differs from the final one, and the one
    after t is nearer to it than that. Scoring stops when the two agree on a share of `agreement`
    of the kept channels, and in any case after `at_most` batches: from there on agreement grows so
    slowly (see the method card) that one should say how many batches one wants.

    Attributes:
        reached: The agreement at the last look.
    """

    def __init__(
        self,
        choose: Callable[[Scores], Alive],
        agreement: float = 0.98,
        at_least: int = 8,
        at_most: int = 16,
    ) -> None:
        """Sets the rule.

        Args:
            choose: From scores to the living channels, at the sparsity that is wanted.
            agreement: The share of kept channels that must be the same.
            at_least: No look before so many batches.
            at_most: Batches after which scoring stops, settled or not.
        """
        self._choose = choose
        self._wanted = agreement
        self._at_least = at_least
        self._at_most = at_most
        self._history: list[Alive] = []
        self.reached = 0.0

    def __call__(self, scores: Scores) -> bool:
        """Takes note of the choice after a batch."""
        alive = self._choose(scores)
        self._history.append(alive)
        batches = len(self._history)
        if batches >= self._at_least and batches % 2 == 0:
            before = self._history[batches // 2 - 1]
            self.reached = float((alive & before).sum() / max(alive.sum(), 1))
            if self.reached >= self._wanted:
                return True
        return batches >= self._at_most
