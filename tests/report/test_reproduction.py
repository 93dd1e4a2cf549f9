"""The page of a table or figure of the paper."""

from __future__ import annotations

import base64
import re

import pytest

from ranp.report.comparison import Compared, Comparison
from ranp.report.reproduction import Reproduction, render_reproduction
from ranp.report.table import Column, ComparisonTable, Figure, Row
from tests.report.tables import tables_of

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;{{7*7}}"
COLUMNS = (
    Column("sparsity", "Sparsity (%)", points=True),
    Column("gflops", "GFLOPs"),
    Column("miou", "mIoU (%)", points=True),
    Column("top1", "top-1 (%)", points=True),
)


def row(group, label, gflops, miou=None, note=None):
    figures = {"gflops": gflops, "sparsity": Figure((78.24,), 78.24)}
    return Row(group, label, figures | ({} if miou is None else {"miou": miou}), note)


def beside(**options):
    rows = (
        row("A", "Full", Figure((237.85,), 237.85, exact=True), Figure((80.0, 82.0), 83.79)),
        row("A", "RANP-f", Figure((7.5, 8.5), 7.54), Figure((79.0, 80.0), 83.07), "See `conv1`."),
        row("B", "Full", Figure((27.88,), 27.88, exact=True)),
        row("B", "Random NP", Figure((), 16.45), note="Drawn."),
        row("B", "RANP-f", Figure((15.0,)), note="See `conv1`."),
    )
    return ComparisonTable("Table 2: methods", COLUMNS, rows, ("Scale `smoke`; one.",), **options)


DRAWN = {
    "A": Comparison(
        "A",
        "mIoU (%)",
        "95 % of two seeds",
        [
            Compared("Full", 81.0, (68.29, 93.71), {"gflops": 237.85}, 2),
            Compared("RANP-f", 79.5, costs={"gflops": 8.0}),
        ],
    )
}


def rendered(table=None, **more):
    return render_reproduction(Reproduction("table-capability", table or beside(), **more))


def plain(text):
    return " ".join(text.split())


def test_the_tables_of_the_page_are_those_of_the_markdown():
    table = beside()
    shown = tables_of(rendered(table))
    assert [each.name for each in shown] == ["beside-1", "beside-2"]
    lines = [line for line in table.markdown().splitlines() if " | " in line and "---" not in line]
    cells = [[plain(text).replace("`", "") for text in line.split(" | ")] for line in lines]
    for line in (0, 3):
        cells[line][0] = "row"
    assert [[cell.text for cell in r] for each in shown for r in each.rows] == cells


def test_cells_sort_by_our_own_figure_and_missing_ones_come_last():
    first, second = tables_of(rendered())
    assert [r[2].value for r in first.rows[1:]] == ["237.85", "8.0"]
    assert [r[2].value for r in second.rows[1:]] == ["27.88", "", "15.0"]
    assert second.rows[2][2].text == "– / 16.45"


def test_networks_that_were_trained_are_drawn_and_their_intervals_stand_beside_the_metric():
    page = rendered(drawn=DRAWN)
    first, second = tables_of(page)
    assert [cell.text for cell in first.rows[0]] == [
        "row", "Sparsity (%)", "GFLOPs", "mIoU (%)", "interval", "check",
    ]  # fmt: skip
    assert [r[4].text for r in first.rows[1:]] == ["68.29 to 93.71", ""]
    assert float(first.rows[1][4].value) == pytest.approx(25.42)
    assert "interval" not in {cell.text for cell in second.rows[0]}
    assert re.findall(r'id="(scatter[^"]*)"', page) == ["scatter-1-gflops"]
    assert page.count('class="point') == 2
    assert page.count("Intervals: 95 % of two seeds.") == 1


def test_without_intervals_there_is_no_column_of_them():
    network = Compared("RANP-f", 79.5, costs={"gflops": 8.0})
    page = rendered(drawn={"A": Comparison("A", "mIoU (%)", "one seed", [network])})
    assert "interval" not in {cell.text for cell in tables_of(page)[0].rows[0]}
    assert "Up and to the left" in page and "one seed" not in page


def test_without_training_there_is_no_plot():
    page = rendered()
    assert 'class="scatter"' not in page and "Intervals:" not in page
    assert "Up and to the left" not in page


def test_notes_are_numbered_once_and_code_is_marked():
    page = rendered()
    assert re.findall(r'href="#(note-\d)"', page) == ["note-1", "note-2", "note-1"]
    notes = re.findall(r'<li id="note-\d">(.*?)</li>', page)
    assert notes == ["See <code>conv1</code>.", "Drawn."]
    assert "Scale <code>smoke</code>; one." in page


def test_verdicts_are_explained_where_there_are_any():
    assert "A row is <b>exact</b>" in rendered()
    assert "A row is <b>exact</b>" not in rendered(beside(checked=False))


def test_groups_and_tables_without_figures_say_so():
    nothing = ComparisonTable(
        "T", COLUMNS, (Row("A", "Full", {}), Row("B", "Full", {"gflops": Figure()}))
    )
    page = rendered(nothing)
    assert tables_of(page) == [] and page.count("Nothing was computed here.") == 2
    assert "The table has no rows." in rendered(ComparisonTable("T", COLUMNS, ()))


def test_all_that_it_depends_on_is_told():
    about = [("3 cells, computed with", [("torch", "9.8.7")])]
    page = rendered(command="ranp reproduce x", about=about, facts=[("scale", "smoke")])
    text = plain(re.sub(r"<[^>]*>", " ", page.partition("<body>")[2]))
    for words in ("scale smoke", "ranp reproduce x", "3 cells, computed with torch 9.8.7"):
        assert words in text


def test_hostile_names_are_escaped_everywhere():
    figures = {"gflops": Figure((1.0,))}
    row_of_it = Row(HOSTILE, HOSTILE, figures, HOSTILE)
    table = ComparisonTable(HOSTILE, (Column("gflops", HOSTILE),), (row_of_it,), (HOSTILE,))
    network = Compared(HOSTILE, 1.0, costs={"gflops": 1.0})
    drawn = {HOSTILE: Comparison("", HOSTILE, HOSTILE, [network])}
    page = render_reproduction(
        Reproduction(
            HOSTILE, table, [(HOSTILE, HOSTILE)], drawn, (), HOSTILE, [(HOSTILE, [(HOSTILE,) * 2])]
        )
    )
    assert "<img" not in page and "alert(1)</script>" not in page
    assert page.count("<script>") == 2
    assert tables_of(page)[0].rows[1][0].text == f"{HOSTILE} [1]"


def test_a_picture_is_inlined_sharp_if_it_is_small(tmp_path):
    svg, png = tmp_path / "fig.svg", tmp_path / "fig.png"
    svg.write_text("<svg/>")
    png.write_bytes(b"\x89PNG")
    assert pictures(rendered(pictures=[png, svg])) == [("image/svg+xml", b"<svg/>")]
    svg.write_text("<svg/>" + " " * 350_000)
    assert pictures(rendered(pictures=[png, svg])) == [("image/png", b"\x89PNG")]
    assert pictures(rendered()) == []


def pictures(page):
    found = re.findall(r'<img src="data:([^;]*);base64,([^"]*)" alt="Table 2: methods">', page)
    return [(kind, base64.b64decode(content)) for kind, content in found]
