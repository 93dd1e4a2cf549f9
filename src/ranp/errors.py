"""Errors that a user can act on. Each carries the exit code the command line ends with."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Row = TypeVar("Row")


class RanpError(Exception):
    """Base of all errors raised on purpose: one line with the thing, the reason, the way out."""

    exit_code = 1


class UsageError(RanpError):
    """A wrong argument, configuration key or batch structure."""

    exit_code = 2


class InfeasibleError(RanpError):
    """The target (sparsity, budget) cannot be reached.

    Attributes:
        max_sparsity: Largest feasible sparsity; None if there is none or it is not known.
    """

    exit_code = 3

    def __init__(self, message: str, *, max_sparsity: float | None = None) -> None:
        super().__init__(message)
        self.max_sparsity = max_sparsity


class IntegrityError(RanpError):
    """Data or a file is damaged, or two things that must agree do not."""

    exit_code = 4


class TraceError(RanpError):
    """The model cannot be traced: an operation without a rule, or a forward that raises."""

    exit_code = 5


_AS_OPTIONS = ContextVar("settings are options of a command", default=False)


@contextmanager
def settings_as_options() -> Iterator[None]:
    """Let messages name settings as the command line takes them (see `name_settings`)."""
    before = _AS_OPTIONS.set(True)
    try:
        yield
    finally:
        _AS_OPTIONS.reset(before)


def name_settings(**settings: object) -> str:
    """Return settings as a user gives them: `floor='auto'`, or `--floor auto` to a command.

    An option is repeated for every entry of a list.
    """
    if _AS_OPTIONS.get():
        given = {n: v if isinstance(v, list) else [v] for n, v in settings.items()}
        return " ".join(f"--{name} {value}" for name, values in given.items() for value in values)
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


_MOST = 5
"""Names that an error lists."""
_ALIKE = 0.6
"""How alike a suggested name is at the least, from 0 to 1."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest known names, otherwise some known names."""
    known = sorted(known)
    likeness = {
        each: difflib.SequenceMatcher(None, each.lower(), name.lower()).ratio() for each in known
    }
    most = max(likeness.values(), default=0.0)
    if most >= _ALIKE:
        *first, last = [f"'{each}'" for each in known if likeness[each] == most][:_MOST]
        return f" Did you mean {', '.join(first)}{' or ' * bool(first)}{last}?"
    return f" Known: {first_of(known, _MOST)}." if known else ""


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are, such as "a, b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def lookup(table: Mapping[str, Row], name: str, what: str) -> Row:
    """Return the row of a name; raise `UsageError` if there is none, and suggest the closest."""
    if name not in table:
        raise UsageError(f"unknown {what} '{name}'.{suggest(name, table)}")
    return table[name]


def register(table: dict[str, Row], name: str, row: Row, what: str) -> Row:
    """Add a row under a name, and return it; the same row may be added again.

    Raises:
        UsageError: Another row has that name.
    """
    if table.get(name, row) != row:
        raise UsageError(f"{what} '{name}' is already registered; choose another name")
    table[name] = row
    return row


def check_one_of(what: str, given: object, known: Iterable[str]) -> None:
    """Refuse a value that is not one of those known; `what` is the name of the argument."""
    known = tuple(known)
    if given not in known:
        raise UsageError(f"{what} must be one of {', '.join(map(repr, known))}, got {given!r}")


def import_extra(module: str, need: str, extra: str) -> Any:
    """Import an optional dependency; raise `UsageError` if it is not installed.

    The error says what needs it, such as "videos need PyAV", and which extra installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f'{need}: pip install "ranp[{extra}]"') from error


_OUT_OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "not enough memory",
    "could not create a primitive",  # oneDNN, when its own allocations fail
    "could not create a memory object",
    "could not execute a primitive",
    "failed to map segment",  # of a shared library, at an import
    "bad_alloc",
    "can't start new thread",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out; on a CPU it is a mere RuntimeError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, (RuntimeError, ImportError)) and any(
        sign in text for sign in _OUT_OF_MEMORY
    )
