"""Fingerprints of the code that computes a result, so that outdated results are found."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from ranp.files import sha256
from ranp.user_code import is_written_here, loaded_modules

_ONLY_SHOWS = ("ranp.report", "ranp.recording", "ranp.cli")
_DIGITS = 16


def code_fingerprint(*objects: Any) -> str:
    """Return a hash of the modules that define some functions or classes, and all they import.

    Modules of the user that were loaded by name count too: they may register a method. Comments,
    docstrings and blank lines do not count, nor do installed packages, whose versions are stored
    with results, nor what only shows results.
    """
    found: dict[str, str] = {}
    waiting = [*(_innermost(each).__module__ for each in objects), *loaded_modules()]
    seen: set[str] = set()  # most names are no modules, and come again and again
    while waiting:
        name = waiting.pop()
        path = None if name in seen or name.startswith(_ONLY_SHOWS) else _source(name)
        seen.add(name)
        if path is not None:
            found[name], imported = _read(name, path)
            waiting += imported
    return sha256("\n".join(f"{name} {found[name]}" for name in sorted(found)))[:_DIGITS]


def _innermost(function: Any) -> Any:
    """Return what is inside of decorators and partials, however they are nested."""
    inner = inspect.unwrap(function)
    return _innermost(inner.func) if isinstance(inner, partial) else inner


def _source(name: str) -> Path | None:
    """Return the file of a module; None if it is not a module, or one of an installed package."""
    top = name.partition(".")[0]
    package = "" if top == "ranp" else _origin(top)
    if package and not is_written_here(package):
        return None  # looking for a module below it would import it
    origin = _origin(name)
    if not origin.endswith(".py"):
        return None
    return Path(origin) if top == "ranp" or is_written_here(origin) else None


def _origin(name: str) -> str:
    """Return where a module comes from; "" if that is not known."""
    origin = getattr(sys.modules.get(name), "__file__", None)
    if origin is None:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return ""
        origin = None if spec is None else spec.origin
    return origin or ""


@cache
def _read(name: str, path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the hash of a module's code, and the names of what it imports."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.splitlines()
    for docstring in _docstrings(tree):
        first, last = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
        lines[first:last] = [""] * (last - first)
    code = [line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return sha256("\n".join(code)), tuple(_imports(tree, package))


def _docstrings(node: ast.Module | ast.stmt) -> Iterator[ast.stmt]:
    for number, statement in enumerate(getattr(node, "body", ())):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            if number == 0 or isinstance(statement.value.value, str):
                yield statement  # a docstring, or a string below an attribute that says what it is
        elif isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _docstrings(statement)


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the names of all that is imported, in functions too; some are no modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
