"""Results that are computed once: a record for every cell, named by a hash of what the cell is.

A cell is anything that can be computed on its own: one network, data set, method, sparsity and
seed. Its directory holds whatever its computation keeps to go on after an interruption, and, once
it is complete, its sealed record. Processes that share a store, on one machine or on several with
a common file system, take cells that no other process holds (see `ranp.experiments.jobs`).
"""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ranp._version import __version__
from ranp.errors import IntegrityError, UsageError
from ranp.files import (
    LOCK,
    ensure_directory,
    hold_directory,
    json_sha256,
    sha256,
    write_sealed_json,
    write_text,
)
from ranp.schemas import read_file

Cell = Mapping[str, Any]
"""Description of a cell: JSON values by name. Equal descriptions are the same cell."""

Compute = Callable[[Cell, Path], dict[str, Any]]
"""`compute(cell, directory)` -> result; files that it keeps in the directory outlive a kill."""

OnCell = Callable[[Cell, int, int], None]
"""`on_cell(cell, complete, total)`, called before a cell is computed."""

_KEY_DIGITS = 16
_RECORD, _CODE = "record.json", "code"
# Plans, scores and the like; the files of a training run carry the id of its configuration.
_KEPT = ("*", "run/config.json")
_POLL_SECONDS = 0.5
_ADDED = {"dampening": 0.0}
"""Settings that cells of earlier versions lack, and the value that means what was done then."""


def ignore_cell(cell: Cell, done: int, total: int) -> None:
    """Do nothing before a cell is computed."""


class Store:
    """Cells and their records, in one directory.

    Args:
        directory: Directory of the store; made if it does not exist.
        code: Fingerprint of the code that computes cells (see `code_fingerprint`), stored with
            each. None stores none.
        recompute: Whether cells that other code computed are computed again.
    """

    def __init__(
        self, directory: str | Path, *, code: str | None = None, recompute: bool = False
    ) -> None:
        self.directory = ensure_directory(directory)
        self.code = code
        self.recompute = recompute

    def place(self, cell: Cell) -> Path:
        """Return the directory of a cell, which an earlier version may have completed."""
        before, now = (self.directory / _key(each) for each in (_without_added(cell), cell))
        return before if (before / _RECORD).exists() else now

    def result(self, cell: Cell) -> dict[str, Any] | None:
        """Return the result of a cell, or None if it is not complete."""
        record = self.record(cell)
        return None if record is None else record["result"]

    def record(self, cell: Cell) -> dict[str, Any] | None:
        """Return all that is stored of a cell, such as the versions that computed it."""
        path = self.place(cell) / _RECORD
        if not path.exists():
            return None
        record = read_file(path, "cell")
        if _key(_without_added(record["cell"])) != _key(_without_added(cell)):
            raise IntegrityError(
                f"'{path}' is the record of another cell; remove it, and the cell is computed again"
            )
        found = _kept(path.parent, record.get("files", {}))
        for name, digest in record.get("files", {}).items():
            if found.get(name, digest) != digest:
                raise IntegrityError(
                    f"'{path.parent / name}' belongs to another cell, or was changed; restore it, "
                    f"or remove '{path.parent}', and the cell is computed again"
                )
        return record

    def complete_place(self, cell: Cell) -> Path:
        """Return the directory of a cell that others are made of, after a check of its files.

        Raises:
            UsageError: The cell is not complete.
            IntegrityError: A file of it was changed, or is another cell's.
        """
        place = self.place(cell)
        if self.record(cell) is None:
            raise UsageError(f"cell '{place.name}', which others need, must be computed first")
        return place

    def check_owner(self, cell: Cell, owner: str, path: Path) -> None:
        """Refuse a file of a cell under way that carries the name of another one."""
        if owner != self.place(cell).name:
            raise IntegrityError(
                f"'{path}' belongs to another cell, '{owner}'; restore it, or remove "
                f"'{path.parent}', and the cell is computed again"
            )

    def is_outdated(self, cell: Cell) -> bool:
        """Return whether a complete cell was computed, or started, by other code."""
        record = self.record(cell)
        return self.code is not None and record is not None and record.get("code") != self.code

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells that are still to be computed."""
        return [cell for cell in cells if self._is_missing(cell)]

    def complete(
        self,
        cells: Sequence[Cell],
        compute: Compute,
        on_cell: OnCell = ignore_cell,
        *,
        wait: bool = False,
    ) -> int:
        """Compute the cells that are missing and that no other process holds; return how many.

        With `wait` it goes on until all of them are complete, whichever process computes them.
        """
        computed = 0
        while missing := self.missing(cells):
            for cell in missing:
                with hold_directory(ensure_directory(self.place(cell))) as owner:
                    # The other process may have ended between the look and the lock: look again.
                    if owner is None and self._is_missing(cell):
                        on_cell(cell, len(cells) - len(self.missing(cells)), len(cells))
                        self._compute(cell, compute)
                        computed += 1
            if not wait:
                break
            if self.missing(cells):
                time.sleep(_POLL_SECONDS)
        return computed

    def require(self, cell: Cell, compute: Compute) -> dict[str, Any]:
        """Return the result of a cell; compute it now, or wait for the process that does.

        For what other cells are made of: `complete` passes over what another process holds.
        """
        with hold_directory(ensure_directory(self.place(cell)), wait=True):
            if self._is_missing(cell):
                self._compute(cell, compute)
        result = self.result(cell)
        assert result is not None
        return result

    def _is_missing(self, cell: Cell) -> bool:
        if not (self.place(cell) / _RECORD).exists():
            return True
        return self.recompute and self.is_outdated(cell)

    def _compute(self, cell: Cell, compute: Compute) -> None:
        """Compute a cell that this process holds."""
        place, started = self.place(cell), time.time()
        begun = place / _CODE
        if self.recompute and _read(begun) != self.code:
            _clear(place)
        if self.code is not None and {path.name for path in place.iterdir()} <= {LOCK, _CODE}:
            write_text(begun, self.code)  # nothing of an earlier attempt is built upon
        result = compute(cell, place)
        code = _read(begun)
        write_sealed_json(
            place / _RECORD,
            {
                "schema": 1,
                "kind": "cell",
                "cell": dict(cell),
                "result": result,
                "seconds": time.time() - started,
                "versions": versions(),
                "files": _kept(place),
                **({} if code is None else {"code": code}),
            },
        )


def _key(cell: Cell) -> str:
    return json_sha256(dict(cell))[:_KEY_DIGITS]


def _without_added(value: Any) -> Any:
    """Return a description without the settings that it did not have in earlier versions."""
    if not isinstance(value, Mapping):
        return value
    return {k: _without_added(v) for k, v in value.items() if k not in _ADDED or v != _ADDED[k]}


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _kept(place: Path, names: Iterable[str] | None = None) -> dict[str, str]:
    """Return the hashes of what a cell keeps for others to read, by name."""
    if names is None:
        paths = [path for pattern in _KEPT for path in sorted(place.glob(pattern))]
        others = [path.relative_to(place).as_posix() for path in paths]
        names = [name for name in others if name not in (LOCK, _CODE, _RECORD) and name[0] != "."]
    files = {name: place / name for name in names}
    return {name: sha256(path.read_bytes()) for name, path in files.items() if path.is_file()}


def _clear(place: Path) -> None:
    """Remove all that is kept of a cell; its record first, so that no half of it counts."""
    (place / _RECORD).unlink(missing_ok=True)
    for path in place.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def versions() -> dict[str, str]:
    """Return the versions of the software that computes results."""
    from importlib.metadata import version

    return {"ranp": __version__, "torch": version("torch"), "python": platform.python_version()}
