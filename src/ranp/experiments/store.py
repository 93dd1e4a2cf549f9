"""Results that are computed once: a record per cell, named by a hash of what the cell is.

A cell is anything that can be computed on its own: one network, data set, method, sparsity and
seed. Its directory holds whatever its computation keeps to go on after an interruption, and, once
it is complete, its sealed record. Processes that share a store, on one machine or on several with
a common file system, take cells that nobody else is at: start the same command as often as there
are processors, by hand, by torchrun or as the array job of a scheduler.
"""

from __future__ import annotations

import contextlib
import fcntl
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ranp._version import __version__
from ranp.files import (
    canonical_json,
    ensure_directory,
    sha256,
    write_sealed_json,
)
from ranp.schemas import read_file

Cell = Mapping[str, Any]
"""What a cell is: JSON values by name. Equal cells are the same cell."""

Compute = Callable[[Cell, Path], dict[str, Any]]
"""Computes a cell; may keep files in the directory it is given, which outlives interruptions."""

_KEY_DIGITS = 16
_RECORD, _LOCK = "record.json", "lock"


class Store:
    """Cells and their records, in one directory.

    Args:
        directory: Where they are; made if it is not there.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = ensure_directory(directory)

    def place(self, cell: Cell) -> Path:
        """The directory of a cell, named by what it is."""
        return self.directory / sha256(canonical_json(dict(cell)))[:_KEY_DIGITS]

    def result(self, cell: Cell) -> dict[str, Any] | None:
        """What a cell came to; nothing while it is not complete."""
        record = self.record(cell)
        return None if record is None else record["result"]

    def record(self, cell: Cell) -> dict[str, Any] | None:
        """All that is kept of a cell, such as the versions that computed it."""
        path = self.place(cell) / _RECORD
        return read_file(path, "cell") if path.exists() else None

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells that are not complete."""
        return [cell for cell in cells if not (self.place(cell) / _RECORD).exists()]

    def complete(
        self,
        cells: Sequence[Cell],
        compute: Compute,
        on_cell: Callable[[Cell, int], None] = lambda cell, done: None,
    ) -> int:
        """Computes the cells that are missing and that no other process is at.

        Args:
            cells: The cells, in the order in which they are wanted.
            compute: Computes one.
            on_cell: Told of each cell before it is computed, and how many are complete by then.

        Returns:
            How many cells were computed here.
        """
        computed = 0
        for cell in cells:
            if self.result(cell) is not None:
                continue
            place = ensure_directory(self.place(cell))
            # The other process may have ended between the look and the lock: look again.
            with _claimed(place, wait=False) as ours:
                if not ours or (place / _RECORD).exists():
                    continue
                on_cell(cell, len(cells) - len(self.missing(cells)))
                self._compute(cell, compute, place)
                computed += 1
        return computed

    def require(self, cell: Cell, compute: Compute) -> dict[str, Any]:
        """What a cell came to; computed now if it is missing, or waited for if others are at it.

        For what other cells are made of: `complete` passes over what somebody else is at.

        Args:
            cell: The cell.
            compute: Computes it.
        """
        place = ensure_directory(self.place(cell))
        with _claimed(place, wait=True):
            if not (place / _RECORD).exists():
                self._compute(cell, compute, place)
        result = self.result(cell)
        assert result is not None
        return result

    def _compute(self, cell: Cell, compute: Compute, place: Path) -> None:
        """Computes a cell that this process holds."""
        started = time.time()
        result = compute(cell, place)
        write_sealed_json(
            place / _RECORD,
            {
                "schema": 1,
                "kind": "cell",
                "cell": dict(cell),
                "result": result,
                "seconds": time.time() - started,
                "versions": versions(),
            },
        )


def versions() -> dict[str, str]:
    """What the results were computed with."""
    from importlib.metadata import version

    return {"ranp": __version__, "torch": version("torch"), "python": platform.python_version()}


@contextlib.contextmanager
def _claimed(place: Path, *, wait: bool) -> Iterator[bool]:
    """Holds a cell for this process, if nobody else does; the system lets go when it is killed.

    Args:
        place: The cell's directory.
        wait: Whether to wait until nobody else holds it.
    """
    with (place / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
