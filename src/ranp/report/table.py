"""Tables of our figures beside printed ones, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NBSP = "\N{NO-BREAK SPACE}"  # narrow columns break between figures, not within


@dataclass(frozen=True)
class Column:
    """A column of figures, `key` in files.

    Differences are relative, in per cent, or in the figure's own unit (`points`). `digits` are
    those after the decimal point, or `significant` ones.
    """

    key: str
    title: str
    digits: int = 2
    points: bool = False
    significant: bool = False


@dataclass(frozen=True)
class Figure:
    """One figure: ours, from one or several seeds, and the printed one.

    Attributes:
        ours: Our values by seed; empty where it was not computed.
        printed: Printed value; None where none was printed.
        spread: Spread of a single value, such as the deviation over the last epochs.
        printed_spread: Printed standard deviation.
        exact: Whether ours must equal the printed one to its last digit, since it depends neither
            on data nor on chance.
    """

    ours: tuple[float, ...] = ()
    printed: float | None = None
    spread: float | None = None
    printed_spread: float | None = None
    exact: bool = False

    @property
    def mean(self) -> float | None:
        """Mean over the seeds."""
        return statistics.fmean(self.ours) if self.ours else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds; of one seed, its own spread."""
        return statistics.stdev(self.ours) or None if len(self.ours) > 1 else self.spread

    @property
    def difference(self) -> float | None:
        """Ours less the printed one; None where one of them is missing."""
        return None if self.mean is None or self.printed is None else self.mean - self.printed

    @property
    def relative(self) -> float | None:
        """The difference as a share of the printed one; None where that is missing or zero."""
        difference = self.difference
        return None if difference is None or not self.printed else difference / self.printed


@dataclass(frozen=True)
class Row:
    """A row of a table.

    `group` is the title of the rows that it stands with, a network on a data set; `figures` are by
    key of the column; `series` is the curve that it is a point of, by default its own.
    """

    group: str
    label: str
    figures: Mapping[str, Figure]
    note: str | None = None
    series: str | None = None


@dataclass(frozen=True)
class Group:
    """Rows that stand together, and the columns in which any has a figure.

    It is `checked` if any of the rows has a verdict.
    """

    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    checked: bool


@dataclass(frozen=True)
class Shown:
    """One figure as text: ours, the printed one and the difference; empty where there is none."""

    ours: str
    printed: str = ""
    difference: str = ""


@dataclass(frozen=True)
class ComparisonTable:
    """A table of our figures beside printed ones.

    `about` are paragraphs on how the figures were computed. A difference up to `tolerance` is none;
    where sizes differ, nothing is `checked`.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    about: tuple[str, ...] = ()
    tolerance: float = 0.005
    checked: bool = True

    def agrees(self, figure: Figure) -> bool:
        """Return whether a figure is the printed one, to the last digit."""
        return figure.difference is not None and abs(figure.difference) <= self.tolerance

    def groups(self) -> list[Group]:
        """Return the rows by group."""
        found = []
        for title in dict.fromkeys(row.group for row in self.rows):
            rows = tuple(row for row in self.rows if row.group == title)
            columns = tuple(c for c in self.columns if any(self.cell(row, c) for row in rows))
            found.append(Group(title, rows, columns, any(map(self.verdict, rows))))
        return found

    def notes(self) -> list[str]:
        """Return the notes of rows, each once; rows refer to them by number, from 1."""
        return list(dict.fromkeys(row.note for row in self.rows if row.note is not None))

    def markdown(self) -> str:
        """Return a table per group, each figure as `ours / printed (difference)`."""
        lines = [f"## {self.title}", ""]
        for paragraph in self.about:
            lines += [paragraph, ""]
        notes = self.notes()
        for group in self.groups():
            check = ["check"] if group.checked else []
            rows = []
            for row in group.rows:
                note = "" if row.note is None else f" [{notes.index(row.note) + 1}]"
                cells = [self.cell(row, column) for column in group.columns]
                rows.append([f"{row.label}{note}", *cells, *(self.verdict(row) for _ in check)])
            headings = [group.title, *(column.title for column in group.columns), *check]
            lines += [*markdown_table(headings, rows, texts=check), ""]
        lines += [f"[{i}] {note}\n" for i, note in enumerate(notes, 1)]
        return "\n".join(lines).rstrip() + "\n"

    def cell(self, row: Row, column: Column) -> str:
        """Return one figure as text."""
        shown = self.shown(row, column)
        if shown is None or not shown.printed:
            return "" if shown is None else shown.ours
        slash = f"{_NBSP}/{_NBSP}" if "±" not in shown.ours else f"{_NBSP}/ "
        difference = f" ({shown.difference})" if shown.difference else ""
        return f"{shown.ours}{slash}{shown.printed}{difference}"

    def shown(self, row: Row, column: Column) -> Shown | None:
        """Return one figure in its parts; None where there is neither ours nor a printed one."""
        figure = row.figures.get(column.key)
        if figure is None or (figure.mean is None and figure.printed is None):
            return None
        ours = _number(figure.mean, figure.deviation, column)
        if figure.printed is None:
            return Shown(ours)
        printed = _number(figure.printed, figure.printed_spread, column)
        return Shown(ours, printed, self._difference(figure, column))

    def _difference(self, figure: Figure, column: Column) -> str:
        if figure.difference is None or (figure.exact and self.agrees(figure)):
            return ""
        if column.points:
            points = f"{figure.difference:+.{column.digits}f}"
            return points if float(points) else ""
        return "" if figure.relative is None else f"{100 * figure.relative:+.1f}{_NBSP}%"

    def verdict(self, row: Row) -> str:
        """Return the result of the comparison: "exact", "differs", "near" or nothing."""
        if not self.checked:
            return ""
        exact = [figure for figure in row.figures.values() if figure.exact]
        if exact:
            return "exact" if all(map(self.agrees, exact)) else "differs"
        return "near" if any(f.printed is not None for f in row.figures.values()) else ""

    def csv(self) -> str:
        """Return CSV with a line per figure."""
        return csv_text(
            {
                "group": row.group,
                "row": row.label,
                "figure": key,
                "ours": figure.mean,
                "deviation": figure.deviation,
                "seeds": len(figure.ours),
                "printed": figure.printed,
                "printed_deviation": figure.printed_spread,
                "difference": figure.difference,
                "relative": figure.relative,
                "check": self.verdict(row),
            }
            for row in self.rows
            for key, figure in row.figures.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "title": self.title,
            "about": list(self.about),
            "rows": [
                {
                    "group": row.group,
                    "label": row.label,
                    "check": self.verdict(row),
                    "note": row.note,
                    "figures": {
                        key: {
                            "ours": list(figure.ours),
                            "mean": figure.mean,
                            "deviation": figure.deviation,
                            "printed": figure.printed,
                            "printed_deviation": figure.printed_spread,
                            "exact": figure.exact,
                        }
                        for key, figure in row.figures.items()
                    },
                }
                for row in self.rows
            ],
        }


def _number(value: float | None, deviation: float | None, column: Column) -> str:
    if value is None:
        return "–"
    form = f".{column.digits}{'g' if column.significant else 'f'}"
    spread = "" if deviation is None else f"{_NBSP}±{_NBSP}{deviation:{form}}"
    return f"{value:{form}}{spread}"


def markdown_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[str] = ()
) -> list[str]:
    """Return the lines of a Markdown table; all columns but the first and `texts` align right."""
    aligned = ["---", *("---" if heading in texts else "---:" for heading in headings[1:])]
    return [" | ".join(cells) for cells in (headings, aligned, *rows)]


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV; a column that a row does not have is empty in it."""
    lines = list(rows)
    output = io.StringIO()
    names = list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.DictWriter(output, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return output.getvalue()
