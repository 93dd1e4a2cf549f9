"""Reads every case of a data set once, in parallel, and reports all problems."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ranp.errors import IntegrityError, RanpError
from ranp.user_code import describe_failure

Reading = Callable[[Any], Iterator[tuple[str, str]]]
"""Reads a case and yields the pairs of `Checked.counts`."""

_MAX_VALUE = 1e8  # CT has thousands, MR and PET in Bq/ml up to millions


@dataclass(frozen=True, order=True)
class Problem:
    """Something wrong: the file or case, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True)
class Inventory:
    """Cases in a directory, listed by name; nothing has been read yet.

    Attributes:
        cases: Values that the kind's `check` takes; they travel to other processes.
        problems: Problems of the listing itself: absent or foreign files.
        notes: Remarks that are not problems: cases without a label, which readers skip.
    """

    cases: Sequence[Any]
    problems: Sequence[Problem] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Checked:
    """One case after reading.

    Attributes:
        case: Id of the case.
        counts: Pairs (heading, value) that the report counts, such as ("category", "Chair").
        problems: Problems that were found in it.
    """

    case: str
    counts: Sequence[tuple[str, str]] = ()
    problems: Sequence[Problem] = ()


@dataclass(frozen=True)
class Report:
    """Result of a verification.

    `counts` says how often each value occurs, by heading (see `Checked.counts`); paths of
    `problems` are relative to the directory; `notes` are remarks that are not problems.
    """

    kind: str
    directory: str
    cases: int
    counts: dict[str, dict[str, int]]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"ok": self.ok, **asdict(self)}


def checks(path: Callable[[Any], Path]) -> Callable[[Reading], Callable[[Any], Checked]]:
    """Make a `Dataset.check` of the function below, which reads a case and yields its counts.

    Whatever it raises is a problem of the case, listed under what `path` returns for it.
    """

    def decorate(read: Reading) -> Callable[[Any], Checked]:
        @wraps(read)
        def check(case: Any) -> Checked:
            try:
                return Checked(case.id, counts=tuple(read(case)))
            except Exception as error:
                return Checked(case.id, problems=(Problem(str(path(case)), _reason(error)),))

        return check

    return decorate


def _reason(error: BaseException) -> str:
    """Return what is wrong with a case; it is the case's fault, whatever the error."""
    if isinstance(error, RanpError):
        return str(error)
    return f"cannot be read: {describe_failure(error)}"


def check_range(path: Path, values: NDArray[Any]) -> None:
    """Raise `IntegrityError` if values show nothing, or are beyond what anything measures."""
    low, high = float(values.min()), float(values.max())
    if low == high:
        raise IntegrityError(f"'{path}' is constant: all its values are {low:g}")
    if max(-low, high) > _MAX_VALUE:
        raise IntegrityError(
            f"'{path}' holds values from {low:g} to {high:g}; at most {_MAX_VALUE:g} are believable"
        )


def visible(folder: Path) -> list[Path]:
    """Return the entries of a folder by name; hidden files (macOS leaves many) do not count."""
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in entries if not path.name.startswith("."))


def files_by_stem(
    folder: Path, suffixes: Sequence[str], what: str
) -> tuple[dict[str, Path], list[Problem]]:
    """Return a folder's files by name without suffix; foreign and second ones are problems.

    The folder need not exist; suffixes are tried in turn, and problems say `what` a file should be.
    """
    files: dict[str, Path] = {}
    problems = []
    for path in visible(folder):
        suffix = next((suffix for suffix in suffixes if path.name.endswith(suffix)), None)
        if suffix is None:
            problems.append(Problem(str(path), f"a foreign file among the {what}s"))
        elif (first := files.setdefault(path.name.removesuffix(suffix), path)) != path:
            reason = f"a second {what} of this case, beside {first.name}"
            problems.append(Problem(str(path), reason))
    return files, problems


def abbreviate(names: Sequence[str]) -> str:
    """Return the number of names and the first three of them."""
    shown = ", ".join(names[:3])
    return f"{len(names)} ({shown}, ...)" if len(names) > 3 else f"{len(names)} ({shown})"


def check_all(
    cases: Sequence[Any],
    check: Callable[[Any], Checked],
    *,
    workers: int | None = None,
    progress: Callable[[], None] = lambda: None,
) -> list[Checked]:
    """Check cases in processes of their own; the results are in the order of the cases.

    A decoder that crashes on a damaged file takes its process with it, not the verification: the
    cases that were lost are tried again one by one, and the one that kills is named. `check` is at
    module level, since other processes must find it; `progress` is called after every case.
    """
    workers = min(workers or os.cpu_count() or 1, max(len(cases), 1))
    results: dict[int, Checked] = {}
    while len(results) < len(cases):
        left = [index for index in range(len(cases)) if index not in results]
        for index, result in _check_in_pool({i: cases[i] for i in left}, check, workers):
            results[index] = result
            progress()
        # Still left: a process died. Cases are handed out in order, so the killer is among the
        # first few; those go alone, the others get a new pool.
        suspects = [index for index in left if index not in results][: 2 * workers + 1]
        for index in suspects:
            crashed = _failed(cases[index], "reading it crashes the decoder")
            alone = dict(_check_in_pool({index: cases[index]}, check, workers=1))
            results[index] = alone.get(index, crashed)
            progress()
    return [results[index] for index in range(len(cases))]


def _check_in_pool(
    cases: Mapping[int, Any], check: Callable[[Any], Checked], workers: int
) -> Iterator[tuple[int, Checked]]:
    """Results as they come, fewer than there are cases if a process dies."""
    # spawn: the caller may have threads (torch, progress bar), which a fork would not survive.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures = {pool.submit(check, case): index for index, case in cases.items()}
        for future in as_completed(futures):
            index, error = futures[future], future.exception()
            if isinstance(error, BrokenProcessPool):
                raise error
            yield index, _failed(cases[index], _reason(error)) if error else future.result()
    except BrokenProcessPool:
        pass  # the caller sees which cases are left
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, do not read the rest of the data first


def _failed(case: Any, reason: str) -> Checked:
    name = str(getattr(case, "id", case))
    return Checked(name, problems=(Problem(name, reason),))


def summarise(
    kind: str, directory: Path, inventory: Inventory, checked: Sequence[Checked]
) -> Report:
    """Add up counts and problems, paths relative to the data set."""
    counts: dict[str, Counter[str]] = {}
    for case in checked:
        for heading, value in case.counts:
            counts.setdefault(heading, Counter())[value] += 1
    prefix = f"{directory}{os.sep}"
    found = [*inventory.problems, *(p for case in checked for p in case.problems)]
    problems = [Problem(p.path.removeprefix(prefix), p.reason.replace(prefix, "")) for p in found]
    return Report(
        kind=kind,
        directory=str(directory),
        cases=len(checked),
        counts={heading: dict(sorted(counter.items())) for heading, counter in counts.items()},
        problems=tuple(sorted(problems)),
        notes=tuple(inventory.notes),
    )
