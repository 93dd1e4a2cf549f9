"""Docstrings of the package use Markdown's `code`; autodoc wants reStructuredText."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(`[^`]*`)")
# What means something to reStructuredText and is meant literally in our docstrings: |x|, s_u*, x_.
_MARKUP = re.compile(r"(?<!\\)([|*]|_(?!\w))")


def _convert(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    # Parts of a class's page that Sphinx takes from elsewhere are reStructuredText already.
    if getattr(obj, "__module__", "ranp").partition(".")[0] != "ranp":
        return
    text = _CODE.split("\n".join(lines))
    for i, part in enumerate(text):
        text[i] = f"`{part}`" if i % 2 else _MARKUP.sub(r"\\\1", part)
    lines[:] = "".join(text).split("\n")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _convert, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
