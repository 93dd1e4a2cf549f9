"""Scores in a store: a network is scored once for all methods that need the same statistics."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ranp.pruning import Scores
from ranp.trials.store import Cell, Store

_FILE = "scores.safetensors"


def require_scores(store: Store, wanted: Cell, score: Callable[[], Scores]) -> Scores:
    """Return the scores of a cell; the network is scored if the store does not have them."""

    def compute(cell: Cell, place: Path) -> dict[str, Any]:
        began = time.process_time()
        scores = score()
        scores.save(place / _FILE)
        return {"batches": scores.batches, "cpu_seconds": time.process_time() - began}

    store.require(wanted, compute)
    return Scores.load(store.place(wanted) / _FILE)
