"""The user's own code: load it by name, call it, and name the line where it fails.

What is loaded plays a role (`what`), such as "network": errors begin with it.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from ranp.errors import RanpError, UsageError, is_out_of_memory, suggest

_PACKAGE = str(Path(__file__).parent)
_LOADED: dict[str, None] = {}


def load_module(name: str, what: str) -> ModuleType:
    """Import a module, from the current directory too."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    with blame(f"{what}: importing '{name}'", verb="raises"):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"{what}: cannot import '{name}' ({error})") from error
    _LOADED[name] = None
    return module


def loaded_modules() -> tuple[str, ...]:
    """Return the names of the user's modules that were loaded, for processes that need them too."""
    return tuple(_LOADED)


def load_object(name: str, what: str) -> Any:
    """Import an object named `package.module:name`, from the current directory too."""
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise UsageError(f"{what} must be named package.module:name, got '{name}'")
    module = load_module(module_name, f"{what} '{name}'")
    if not hasattr(module, attribute):
        raise UsageError(
            f"{what} '{name}': '{module_name}' has no '{attribute}'."
            f"{suggest(attribute, (n for n in vars(module) if not n.startswith('_')))}"
        )
    return getattr(module, attribute)


def load_function(name: str, what: str) -> Callable[..., Any]:
    """Import a function, or another object that can be called, named `package.module:name`."""
    function: Callable[..., Any] = load_object(name, what)
    if not callable(function):
        raise UsageError(f"{what} '{name}' must be a function, got {type(function).__name__}")
    return function


def call_factory(name: str, what: str) -> Any:
    """Call a factory named `package.module:name` without arguments."""
    factory = load_object(name, what)
    if not callable(factory):
        raise UsageError(f"{what} '{name}' cannot be called; name a function that returns it")
    with blame(f"{what} '{name}'", verb="raises"):
        return factory()


def refuse_stored_code(name: str) -> None:
    """Raise `UsageError` if a network's name, read from a stored file, is that of code to import.

    Code to run must be named on the command line, or passed in Python.
    """
    if ":" in name:
        raise UsageError(
            f"the network is your own code; name it again: --network {name} "
            "(a stored file alone must not import code)"
        )


def load_loader(name: str, what: str) -> Any:
    """Import a loader named `package.module:name`, or call the function that returns one."""
    loader = load_object(name, what)
    if callable(loader):
        loader = call_factory(name, what)
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise UsageError(
            f"{what} '{name}' must be a loader of (input, target) batches, or a function that "
            f"returns one, got {type(loader).__name__}"
        )
    return loader


@contextmanager
def blame(what: str, given: str = "", *, verb: str = "fails:") -> Iterator[None]:
    """Turn whatever the user's own code raises into a `UsageError` that names its line.

    `RanpError`s pass through, and so do out-of-memory errors, which callers can handle. Code that
    ends the process (`sys.exit`) fails too: nobody would know that the work is not done.

    Args:
        what: The code that runs inside, such as "the loss".
        given: What it was given, to end the message with.
        verb: What the code does.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, RanpError) or is_out_of_memory(error):
            raise
        raise UsageError(f"{what} {verb} {describe_failure(error)}{given}") from error


class BlamedLoader:
    """A loader whose errors are the user's (see `blame`); all else is as the loader has it."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        end = object()
        batches: Iterator[Any] | None = None
        for number in count(1):
            with blame(f"the loader, asked for batch {number},"):
                batches = iter(self._loader) if batches is None else batches
                batch = next(batches, end)
            if batch is end:
                return
            yield batch

    def __getattr__(self, name: str) -> Any:
        """Return what the loader has: how it is shared out among processes, how long it is."""
        return getattr(self._loader, name)


def describe_failure(error: BaseException) -> str:
    """Return type, first line and place of an error, such as "ValueError: no (train.py:12)".

    The place is the innermost line of the user's: neither ours nor that of an installed package.
    """
    first = next(iter(str(error).strip().splitlines()), "")[:300].rstrip(".;")
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return f"{what}{failing_line(error)}"


def failing_line(error: BaseException) -> str:
    """Return the innermost line of the user's that an error comes from, as `calling_line` does."""
    return _innermost(traceback.extract_tb(error.__traceback__))


def calling_line() -> str:
    """Return the innermost line of the user's that is running, such as " (net.py:12)"."""
    return _innermost(traceback.extract_stack())


def _innermost(frames: traceback.StackSummary) -> str:
    for frame in reversed(frames):
        if not frame.filename.startswith(_PACKAGE) and is_written_here(frame.filename):
            return f" ({Path(frame.filename).name}:{frame.lineno})"
    return ""


def is_written_here(filename: str) -> bool:
    """Return whether a file is neither Python's own nor that of an installed package."""
    path = Path(filename)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return path.exists() and not installed and Path(sys.base_prefix) not in path.parents
