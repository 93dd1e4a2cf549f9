"""The tables of a page, read as a program would."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class Cell:
    """Text, as it looks, and what it is sorted by."""

    text: str
    value: str | None


@dataclass
class Table:
    """Rows of cells; the first one is the head."""

    name: str | None
    rows: list[list[Cell]] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[Table] = []
        self._cell: Cell | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "table":
            self.tables.append(Table(named.get("id")))
        elif tag == "tr":
            self.tables[-1].rows.append([])
        elif tag in ("th", "td"):
            self._cell = Cell("", named.get("data-value"))
            self.tables[-1].rows[-1].append(self._cell)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td") and self._cell is not None:
            self._cell.text = " ".join(self._cell.text.split())
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.text += data


def tables_of(page: str) -> list[Table]:
    """All tables of a page."""
    reader = _Reader()
    reader.feed(page)
    return reader.tables
