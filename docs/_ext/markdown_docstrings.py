"""Docstrings as we write them for autodoc: Markdown's `code`, dataclasses, long module paths."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(`[^`]*`)")
# What means something to reStructuredText and is meant literally in our docstrings: |x|, s_u*, x_.
_MARKUP = re.compile(r"(?<!\\)([|*]|_(?!\w))")
_PATHS = re.compile(r"\b(collections\.abc|typing|numpy|torch\.nn\.modules\.module)\.")


def _convert(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    # Parts of a class's page that Sphinx takes from elsewhere are reStructuredText already.
    if getattr(obj, "__module__", "ranp").partition(".")[0] != "ranp":
        return
    text = _CODE.split("\n".join(lines))
    for i, part in enumerate(text):
        text[i] = f"`{part}`" if i % 2 else _MARKUP.sub(r"\\\1", part)
    lines[:] = "".join(text).split("\n")


def _shorten(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Types of attributes without the paths of well-known modules."""
    lines[:] = [_PATHS.sub("", line) if line.startswith(":vartype") else line for line in lines]


def _signature(app: Sphinx, what: str, name: str, obj: Any, *rest: Any) -> tuple[str, str] | None:
    """None for values: people get them from functions, and their attributes are listed below."""
    return ("", "") if is_dataclass(obj) else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _convert, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", _shorten, priority=900)  # after it
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
