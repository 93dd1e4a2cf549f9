"""Values in notebooks, progress in terminals, and the size of a MiB."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

MIB = 2**20
"""Bytes of a MiB, which the paper and our tables call MB."""


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML; the notebook gives it its own colours."""

    def line(cells: Sequence[object], tag: str) -> str:
        return "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells)

    head = f"<thead><tr>{line(headings, 'th')}</tr></thead>"
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"


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
