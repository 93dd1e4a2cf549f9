"""The page of a table or figure that was made again: ours beside the printed one, and plots."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ranp.files import write_text
from ranp.report.beside import Beside, Column, Group, Row, Shown
from ranp.report.comparison import Compared, Comparison, Plots, draw_plots, interval_cell
from ranp.report.rendering import render

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
    table: Beside
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
        interval=next((each.interval for each in reproduction.drawn.values()), None),
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


def _section(table: Beside, group: Group, drawn: Mapping[str, Comparison]) -> _Section:
    comparison = drawn.get(group.title)
    networks = {} if comparison is None else {each.name: each for each in comparison.networks}
    headings = ["row"]
    for column in group.columns:
        headings.append(column.title)
        if comparison is not None and column.title == comparison.metric:
            headings.append("interval")
    headings += ["check"] if group.checked else []
    notes = table.notes()
    return _Section(
        title=group.title,
        plots=None if comparison is None else draw_plots(comparison),
        headings=headings,
        lines=[
            _Line(
                row.label,
                None if row.note is None else notes.index(row.note) + 1,
                _cells(table, group, row, comparison, networks.get(row.label)),
            )
            for row in group.rows
        ],
    )


def _cells(
    table: Beside,
    group: Group,
    row: Row,
    comparison: Comparison | None,
    network: Compared | None,
) -> list[_Cell]:
    cells = []
    for column in group.columns:
        cells.append(_cell(table, row, column))
        if comparison is not None and column.title == comparison.metric:
            text, width = ("", "") if network is None else interval_cell(network)
            cells.append(_Cell(width, text=text))
    if group.checked:
        verdict = table.verdict(row)
        cells.append(_Cell(verdict, text=verdict))
    return cells


def _cell(table: Beside, row: Row, column: Column) -> _Cell:
    """Sorted by ours; a row of which only the printed figure is there comes last."""
    shown = table.shown(row, column)
    mean = None if shown is None else row.figures[column.key].mean
    return _Cell("" if mean is None else repr(mean), shown)
