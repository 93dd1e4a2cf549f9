"""The page of a table or figure that was made again: ours beside the printed one, and plots."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ranp.files import write_text
from ranp.report.comparison import Comparison, Plots, draw_plots, interval_cell
from ranp.report.rendering import render
from ranp.report.table import Column, ComparisonTable, Group, Row, Shown

_LARGEST_SVG = 350_000  # bytes: with what else is on a page, far below a megabyte
_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Reproduction:
    """What a page is made of.

    Attributes:
        name: Of the table or figure, on the command line.
        table: Our figures beside the printed ones.
        facts: What was done, in a word or two each: heading and value.
        drawn: By title of the group, its networks in the plane of accuracy and costs; they are
            named as the rows are. Groups of which nothing was trained have none.
        pictures: The same figure in several formats; empty where there is none.
        command: The command that makes it again.
        about: Headings, and names and values below them, such as versions.
    """

    name: str
    table: ComparisonTable
    facts: Sequence[tuple[str, str]] = ()
    drawn: Mapping[str, Comparison] = field(default_factory=dict)
    pictures: Sequence[Path] = ()
    command: str | None = None
    about: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()


@dataclass(frozen=True)
class _Cell:
    """A cell of the table: what it is sorted by, and a figure or text."""

    value: str
    shown: Shown | None = None
    text: str = ""


@dataclass(frozen=True)
class _Line:
    """A row of the table; its note has a number, if there is one."""

    label: str
    note: int | None
    cells: Sequence[_Cell]


@dataclass(frozen=True)
class _Section:
    """A group as it is shown."""

    title: str
    plots: Plots | None
    headings: Sequence[str]
    lines: Sequence[_Line]


def render_reproduction(reproduction: Reproduction) -> str:
    """One HTML page; nothing is fetched, and it reads without JavaScript."""
    table, groups = reproduction.table, reproduction.table.groups()
    return render(
        "reproduction.html",
        script="explorer.js",
        title=table.title,
        name=reproduction.name,
        facts=reproduction.facts,
        paragraphs=table.about,
        picture=_inlined(reproduction.pictures),
        interval=next((c.interval for c in reproduction.drawn.values() if _intervals(c)), None),
        drawn=bool(reproduction.drawn),
        checked=any(group.checked for group in groups),
        sections=[_section(table, group, reproduction.drawn) for group in groups],
        notes=table.notes(),
        command=reproduction.command,
        about=reproduction.about,
    )


def write_reproduction(reproduction: Reproduction, out: str | Path) -> Path:
    """Writes the page."""
    write_text(out, render_reproduction(reproduction))
    return Path(out)


def _inlined(pictures: Sequence[Path]) -> str | None:
    """A picture as an address that holds it: the sharp one, unless it is large.

    As an image, the styles and names in an SVG file cannot reach the page's.
    """
    by_ending = {path.suffix: path for path in pictures}
    for ending in (".svg", ".png"):
        if ending not in by_ending:
            continue
        content = by_ending[ending].read_bytes()
        if len(content) <= _LARGEST_SVG or ending == ".png":
            return f"data:{_TYPES[ending]};base64,{base64.b64encode(content).decode()}"
    return None


def _section(table: ComparisonTable, group: Group, drawn: Mapping[str, Comparison]) -> _Section:
    comparison = drawn.get(group.title)
    columns = _columns(table, group, comparison)
    notes = table.notes()
    return _Section(
        title=group.title,
        plots=None if comparison is None else draw_plots(comparison),
        headings=["row", *(heading for heading, _ in columns)],
        lines=[
            _Line(
                row.label,
                None if row.note is None else notes.index(row.note) + 1,
                [cells[number] for _, cells in columns],
            )
            for number, row in enumerate(group.rows)
        ],
    )


def _columns(
    table: ComparisonTable, group: Group, comparison: Comparison | None
) -> list[tuple[str, list[_Cell]]]:
    """The columns of a group's table: headings and cells."""
    intervals = _intervals(comparison)
    columns = []
    for column in group.columns:
        columns.append((column.title, [_cell(table, row, column) for row in group.rows]))
        if intervals and comparison is not None and column.title == comparison.metric:
            cells = [intervals.get(row.label, _Cell("")) for row in group.rows]
            columns.append(("interval", cells))
    if group.checked:
        verdicts = map(table.verdict, group.rows)
        columns.append(("check", [_Cell(verdict, text=verdict) for verdict in verdicts]))
    return columns


def _intervals(comparison: Comparison | None) -> dict[str, _Cell]:
    """By row, the interval of its accuracy, where it has one."""
    networks = () if comparison is None else comparison.networks
    cells = {each.name: interval_cell(each) for each in networks}
    return {name: _Cell(width, text=text) for name, (text, width) in cells.items() if text}


def _cell(table: ComparisonTable, row: Row, column: Column) -> _Cell:
    """Sorted by ours; a row of which only the printed figure is there comes last."""
    shown = table.shown(row, column)
    mean = None if shown is None else row.figures[column.key].mean
    return _Cell("" if mean is None else repr(mean), shown)
