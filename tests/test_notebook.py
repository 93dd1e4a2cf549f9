"""The progress bar in a notebook, drawn by IPython's display alone."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from rich.progress import BarColumn, MofNCompleteColumn
from rich.table import Table

from ranp import notebook
from ranp.display import html_table, html_text, plain, progress_bar


class Cell:
    """The output of a cell, as `IPython.display.display` hands it out."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def display(self, shown, *, raw, display_id):
        assert raw and display_id
        self.shown.append(shown)
        return self

    def update(self, shown, *, raw):
        assert raw
        self.shown.append(shown)


@pytest.fixture
def cell(monkeypatch):
    """A notebook: without ipywidgets, as there are many."""
    cell, module = Cell(), ModuleType("IPython.display")
    module.display = cell.display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(notebook, "_SECONDS", 0.0)
    return cell


def test_the_bar_of_a_notebook_counts_and_goes_away(cell):
    with progress_bar("{task.description}", BarColumn(), MofNCompleteColumn(), quiet=False) as bar:
        task = bar.add_task("scoring", total=2)
        bar.advance(task)
        bar.advance(task)
    texts = [shown["text/plain"] for shown in cell.shown]
    assert [text[:7] + text[-3:] for text in texts[:-1]] == [f"scoring{n}/2" for n in (0, 1, 2)]
    assert all(text in shown["text/html"] for text, shown in zip(texts, cell.shown, strict=True))
    assert texts[-1] == ""


def test_a_bar_is_not_drawn_more_often_than_it_can_be_seen(cell, monkeypatch):
    monkeypatch.setattr(notebook, "_SECONDS", 3600.0)
    with progress_bar("{task.description}", quiet=False) as bar:
        task = bar.add_task("scoring", total=9)
        for _ in range(9):
            bar.advance(task)
    assert len(cell.shown) == 2  # as it begins, and taken away


def test_the_bar_has_no_codes_of_terminals(cell, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as IPython's kernel has it
    with progress_bar("{task.description}", BarColumn(), quiet=False) as bar:
        bar.advance(bar.add_task("scoring", total=2))
    assert "\x1b" not in "".join(shown["text/plain"] for shown in cell.shown)


def test_tables_are_text_in_a_notebook_too(cell):
    assert plain(Table("layer")) == "┏━━━━━━━┓\n┃ layer ┃\n┡━━━━━━━┩\n└───────┘"
    assert cell.shown == []


def test_text_and_names_are_aligned_whatever_the_notebook_has_for_tables():
    assert "font-family: monospace" in html_text("a  b")
    shown = html_table("of layers", ("layer", "kept"), [("a<b", 3)])
    assert '<td style="text-align: left">a&lt;b</td><td>3</td>' in shown


def test_quiet_in_a_notebook(cell):
    with progress_bar("{task.description}", quiet=True) as bar:
        bar.advance(bar.add_task("scoring", total=2))
    assert cell.shown == []
