"""How values look in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML; the notebook gives it its own colours."""

    def line(cells: Sequence[object], tag: str) -> str:
        return "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells)

    head = f"<thead><tr>{line(headings, 'th')}</tr></thead>"
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"


def html_text(text: str) -> str:
    """Return text as HTML, spaces and lines as they are."""
    return f'<pre style="line-height: 1.2">{escape(text)}</pre>'
