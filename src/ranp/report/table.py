"""Tables of our figures beside printed ones, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FIXED = "\N{NO-BREAK SPACE}"  # narrow columns break between figures, not within


@dataclass(frozen=True)
class Column:
    """A column of figures.

    Attributes:
        key: Name in files.
        title: Heading.
        digits: Digits after the decimal point.
        points: Whether differences are given in the figure's own unit; else relative, in per cent.
        significant: Whether `digits` counts significant digits.
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
        spread: Spread of a single value of ours, such as the deviation over the last epochs.
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


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        group: Title of the group that the row belongs to: a network on a data set.
        label: Name of the row.
        figures: Figures by key of the column.
        note: Note that a reader must know.
        series: Name of the curve that the row is a point of; by default its own.
    """

    group: str
    label: str
    figures: Mapping[str, Figure]
    note: str | None = None
    series: str | None = None


@dataclass(frozen=True)
class Group:
    """Rows that stand together.

    Attributes:
        title: A network on a data set.
        rows: Rows in order.
        columns: Columns in which any of the rows has a figure.
        checked: Whether any of the rows has a verdict.
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

    Attributes:
        title: Title.
        columns: Columns of figures.
        rows: Rows in order.
        about: Paragraphs on how the figures were computed.
        tolerance: Difference up to which a figure counts as the printed one.
        checked: Whether figures can be compared with the printed ones; not if sizes differ.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    about: tuple[str, ...] = ()
    tolerance: float = 0.005
    checked: bool = True

    def agrees(self, figure: Figure) -> bool:
        """Return whether a figure is the printed one, to the last digit."""
        if figure.mean is None or figure.printed is None:
            return False
        return abs(figure.mean - figure.printed) <= self.tolerance

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

    def markdown(self, level: int = 2) -> str:
        """Return a table per group, each figure as `ours / printed (difference)`.

        Args:
            level: Level of the heading.
        """
        lines = [f"{'#' * level} {self.title}", ""]
        for paragraph in self.about:
            lines += [paragraph, ""]
        notes = self.notes()
        for group in self.groups():
            columns = group.columns
            check = ["check"] if group.checked else []
            lines.append(" | ".join([group.title, *(c.title for c in columns), *check]))
            lines.append(" | ".join(["---", *("---:" for _ in columns), *("---" for _ in check)]))
            for row in group.rows:
                label = row.label
                if row.note is not None:
                    label += f" [{notes.index(row.note) + 1}]"
                cells = [self.cell(row, column) for column in columns]
                lines.append(" | ".join([label, *cells, *(self.verdict(row) for _ in check)]))
            lines.append("")
        lines += [f"[{i}] {note}\n" for i, note in enumerate(notes, 1)]
        return "\n".join(lines).rstrip() + "\n"

    def cell(self, row: Row, column: Column) -> str:
        """Return one figure as text."""
        shown = self.shown(row, column)
        if shown is None or not shown.printed:
            return "" if shown is None else shown.ours
        slash = f"{_FIXED}/{_FIXED}" if "±" not in shown.ours else f"{_FIXED}/ "
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
        if figure.mean is None or figure.printed is None or (figure.exact and self.agrees(figure)):
            return ""
        if column.points:
            points = f"{figure.mean - figure.printed:+.{column.digits}f}"
            return points if float(points) else ""
        if figure.printed == 0:
            return ""
        return f"{100 * (figure.mean / figure.printed - 1):+.1f}{_FIXED}%"

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
        output = io.StringIO()
        writer = csv.writer(output, lineterminator="\n")
        writer.writerow(
            ["group", "row", "figure", "ours", "deviation", "seeds", "printed",
             "printed_deviation", "difference", "relative", "check"]
        )  # fmt: skip
        for row in self.rows:
            for key, figure in row.figures.items():
                mean, printed = figure.mean, figure.printed
                both = mean is not None and printed is not None
                difference = mean - printed if both else None  # type: ignore[operator]
                relative = difference / printed if difference is not None and printed else None
                writer.writerow(
                    [row.group, row.label, key, mean, figure.deviation, len(figure.ours), printed,
                     figure.printed_spread, difference, relative, self.verdict(row)]
                )  # fmt: skip
        return output.getvalue()

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
    spread = "" if deviation is None else f"{_FIXED}±{_FIXED}{deviation:{form}}"
    return f"{value:{form}}{spread}"
