from __future__ import annotations

import csv
import io
import json

import pytest

from ranp.report.table import Column, ComparisonTable, Figure, Row

COLUMNS = (Column("sparsity", "Sparsity (%)", points=True), Column("gflops", "GFLOPs"))


def cell(row: Row, column: Column, **options: object) -> str:
    """As it looks: where lines may break makes no difference."""
    return table(row, **options).cell(row, column).replace("\N{NO-BREAK SPACE}", " ")


def table(*rows: Row, **options: object) -> ComparisonTable:
    return ComparisonTable("A table", COLUMNS, rows, **options)


def test_a_figure_stands_beside_the_printed_one_with_its_relative_difference():
    row = Row("net", "RANP-f", {"gflops": Figure((7.96,), 7.54)})
    assert cell(row, COLUMNS[1]) == "7.96 / 7.54 (+5.6 %)"
    assert table(row).verdict(row) == "near"


def test_points_differ_in_their_own_unit():
    row = Row("net", "vanilla", {"sparsity": Figure((70.0,), 78.24)})
    assert cell(row, COLUMNS[0]) == "70.00 / 78.24 (-8.24)"


def test_seeds_give_mean_and_deviation():
    row = Row("net", "RANP-f", {"gflops": Figure((1.0, 3.0), 4.0, printed_spread=0.5)})
    assert cell(row, COLUMNS[1]) == "2.00 ± 1.41 / 4.00 ± 0.50 (-50.0 %)"


@pytest.mark.parametrize(
    ("ours", "verdict", "shown"),
    [
        (237.8512, "exact", "237.85 / 237.85"),
        (237.8556, "differs", "237.86 / 237.85 (+0.0 %)"),
    ],
)
def test_exact_figures_are_those_printed_to_the_last_digit(ours, verdict, shown):
    row = Row("net", "full", {"gflops": Figure((ours,), 237.85, exact=True)})
    assert table(row, tolerance=0.0055).verdict(row) == verdict
    assert cell(row, COLUMNS[1], tolerance=0.0055) == shown


def test_figures_that_are_not_exact_say_nothing_against_a_row_that_is():
    figures = {"gflops": Figure((1.0,), 1.0, exact=True), "miou": Figure((50.0,), 83.79)}
    row = Row("net", "full", figures)
    assert table(row).verdict(row) == "exact"


def test_what_is_not_computed_or_not_printed_is_left_open():
    rows = (Row("net", "a", {"gflops": Figure((), 1.0)}), Row("net", "b", {"gflops": Figure((2,))}))
    assert [cell(row, COLUMNS[1]) for row in rows] == ["– / 1.00", "2.00"]
    assert [table(*rows).verdict(row) for row in rows] == ["near", ""]


def test_scaled_down_nothing_is_checked():
    row = Row("net", "full", {"gflops": Figure((1.0,), 2.0)})
    assert table(row, checked=False).verdict(row) == ""
    assert "check" not in table(row, checked=False).markdown()


def test_markdown_has_a_table_per_group_with_its_own_columns_and_notes():
    text = table(
        Row("one", "full", {"gflops": Figure((1.0,), 1.0, exact=True)}, note="Rounded."),
        Row("two", "vanilla", {"sparsity": Figure((5.0,))}, note="Rounded."),
        Row("two", "random", {"sparsity": Figure((6.0,))}, note="Drawn."),
        about=("How it was made.",),
    ).markdown()
    assert text.replace("\N{NO-BREAK SPACE}", " ") == (
        "## A table\n\nHow it was made.\n\n"
        "one | GFLOPs | check\n--- | ---: | ---\nfull [1] | 1.00 / 1.00 | exact\n\n"
        "two | Sparsity (%)\n--- | ---:\nvanilla [1] | 5.00\nrandom [2] | 6.00\n\n"
        "[1] Rounded.\n\n[2] Drawn.\n"
    )


def test_csv_has_a_line_per_figure():
    content = table(Row("net", "full", {"gflops": Figure((3.0, 5.0), 5.0)})).csv()
    (line,) = csv.DictReader(io.StringIO(content))
    assert (line["group"], line["row"], line["figure"]) == ("net", "full", "gflops")
    assert float(line["ours"]) == 4 and int(line["seeds"]) == 2
    assert float(line["difference"]) == -1 and float(line["relative"]) == -0.2


def test_values_are_plain():
    content = table(Row("net", "full", {"gflops": Figure((3.0,), 3.0, exact=True)})).to_dict()
    assert json.loads(json.dumps(content)) == content
    assert content["rows"][0]["check"] == "exact"
    assert content["rows"][0]["figures"]["gflops"]["ours"] == [3.0]
