"""The page of a reproduced table or figure: our figures beside the printed ones, and plots."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranp.report.comparison import Comparison, draw_plots, interval_cell
from ranp.report.rendering import render
from ranp.report.table import Column, ComparisonTable, Group, Row, Shown

_LARGEST_SVG = 350_000  # bytes: with what else is on a page, far below a megabyte
_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Reproduction:
    """Content of the page.

    `name` is that on the command line; `facts` say what was done, heading and value; `drawn` are,
    by title of the group, its trained networks, named as the rows are; `pictures` are files of the
    same figure in several formats; `about` are headings with names and values, such as versions.
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
    """A cell of the table: what it is sorted by, and a figure or a text."""

    value: str
    shown: Shown | None = None
    text: str = ""


def render_reproduction(reproduction: Reproduction) -> str:
    """Return the page as HTML; nothing is fetched, and it reads without JavaScript."""
    table, groups = reproduction.table, reproduction.table.groups()
    return render(
        "reproduction.html",
        crumb=reproduction.name,
        title=table.title,
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


def _inlined(pictures: Sequence[Path]) -> str | None:
    """Return a picture as a data URL: the SVG, unless it is large.

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


def _section(
    table: ComparisonTable, group: Group, drawn: Mapping[str, Comparison]
) -> dict[str, Any]:
    comparison = drawn.get(group.title)
    columns = _columns(table, group, comparison)
    notes = table.notes()
    return {
        "title": group.title,
        "plots": None if comparison is None else draw_plots(comparison),
        "headings": ["row", *(heading for heading, _ in columns)],
        "lines": [
            {
                "label": row.label,
                "note": None if row.note is None else notes.index(row.note) + 1,
                "cells": [cells[number] for _, cells in columns],
            }
            for number, row in enumerate(group.rows)
        ],
    }


def _columns(
    table: ComparisonTable, group: Group, comparison: Comparison | None
) -> list[tuple[str, list[_Cell]]]:
    """Return the columns of a group's table: headings and cells."""
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
    """Return by row the interval of its accuracy, where it has one."""
    networks = () if comparison is None else comparison.networks
    cells = {each.name: interval_cell(each) for each in networks}
    return {name: _Cell(width, text=text) for name, (text, width) in cells.items() if text}


def _cell(table: ComparisonTable, row: Row, column: Column) -> _Cell:
    """Return a cell sorted by our figure; one with the printed figure alone comes last."""
    shown = table.shown(row, column)
    mean = None if shown is None else row.figures[column.key].mean
    return _Cell("" if mean is None else repr(mean), shown)
