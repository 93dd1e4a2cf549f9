"""Values in notebooks, progress in terminals, and the size of a MiB."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, ProgressColumn

MIB = 2**20
"""Bytes of a MiB, which the paper and our tables call MB."""

_MOST_DIGITS = 8


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML; the notebook gives it its own colours."""

    def line(cells: Sequence[object], tag: str) -> str:
        name, *others = (escape(str(cell)) for cell in cells)
        first = f'<{tag} style="text-align: left">{name}</{tag}>'  # notebooks align to the right
        return first + "".join(f"<{tag}>{cell}</{tag}>" for cell in others)

    head = f"<thead><tr>{line(headings, 'th')}</tr></thead>"
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    # A caption would be broken to the width of the table.
    caption = f'<caption style="white-space: nowrap; text-align: left">{escape(title)}</caption>'
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>"


def html_text(text: str) -> str:
    """Return text as HTML, spaces and lines as they are."""
    # Pages that notebooks are turned into have another font for what is in a cell's HTML.
    return f'<pre style="line-height: 1.2; font-family: monospace">{escape(text)}</pre>'


def digits_for(value: float, least: int) -> int:
    """Return the digits after the decimal point: more where numbers are small."""
    more = 0 if value <= 0 else max(0, math.ceil(-math.log10(value)))
    return min(least + more, _MOST_DIGITS)


def plain(renderable: RenderableType, width: int = 80) -> str:
    """Return a renderable as text without colour or trailing spaces."""
    from rich.console import Console

    output = io.StringIO()
    # In a notebook a console would show its output there, and write nothing.
    console = Console(
        file=output, width=width, color_system=None, highlight=False, force_jupyter=False
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def progress_bar(*columns: str | ProgressColumn, quiet: bool) -> Progress:
    """Return a progress bar on stderr that is removed at its end.

    Args:
        columns: Columns of the bar, as for `rich.progress.Progress`.
        quiet: Whether to show no bar; there is none outside of terminals and notebooks either.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if console.is_jupyter and not quiet:
        from ranp.notebook import NotebookProgress

        return NotebookProgress(*columns)
    hidden = quiet or not console.is_terminal
    return Progress(*columns, console=console, disable=hidden, transient=True)
