"""Tables in the terminal: 80 columns, no colour, any encoding, any name."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ranp.display import plain
from ranp.report.terminal import Bar, retained_table, totals_table

LONG = "backbone.stages.3.blocks.11.inverted_residual.projection.convolution.weight"
TOTALS = {"gflops": 1234.5, "param_mb": 12345.6, "memory_mb": 98765.43, "neurons": 123456}


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal_and_no_bar_breaks(width):
    text = plain(retained_table([(LONG, 1024, 512), ("head", 10, 10)]), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    bars = [line for line in lines if "█" in line]
    assert len(bars) == 2
    half, whole = (line.count("█") for line in bars)
    assert whole >= 8 and abs(half - whole / 2) <= 1


def test_totals_fit_in_80_columns():
    text = plain(totals_table({"full": TOTALS, "ranp-f": TOTALS}), 80)
    assert "1234.50" in text and "98765.43" in text and "123,456" in text
    assert max(map(len, text.splitlines())) <= 80


def test_totals_of_small_networks_are_not_rounded_to_nothing():
    full = {"gflops": 0.0971, "param_mb": 3.43, "memory_mb": 2.91, "neurons": 730}
    slim = {"gflops": 0.0029, "param_mb": 0.5312, "memory_mb": 0.93, "neurons": 283}
    rows = [line.split() for line in plain(totals_table({"full": full, "slim": slim})).splitlines()]
    assert rows[1] == ["full", "0.0971", "3.43", "2.91", "730"]
    assert rows[2] == [
        "slim",
        "0.0029",
        "3.0",
        "%",
        "0.53",
        "15.5",
        "%",
        "0.93",
        "32.0",
        "%",
        "283",
        "38.8",
        "%",
    ]


@pytest.mark.parametrize(("share", "filled"), [(0, 0), (1e-9, 1), (0.5, 4), (1, 8), (1.3, 8)])
def test_bars_show_little_as_something_and_never_overflow(share, filled):
    assert plain(Bar(share, 8)) == "█" * filled + "░" * (8 - filled)


def test_bars_are_ascii_where_the_terminal_is():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Console(file=stream, width=80).print(retained_table([("conv", 4, 1)]))
    stream.flush()
    assert b"######.................." in raw.getvalue()


def test_names_are_not_markup():
    assert "[red]conv[/red]" in plain(retained_table([("[red]conv[/red]", 4, 1)]))
    assert "[/]" in plain(totals_table({"[/]": TOTALS}))
