from __future__ import annotations

import csv
import io
import re

import pytest

from ranp.display import plain
from ranp.report.comparison import render_comparison
from ranp.report.comparison_figure import draw_comparison
from ranp.report.comparison_tables import markdown, page, runs_csv, summary_csv, terminal
from tests.experiments.comparisons import compared

ACCURACIES = {
    "full": [0.91, 0.90, 0.89],
    "ranp-f": [0.80, 0.81, 0.79],
    "random": [0.59, 0.61, 0.60],
    "magnitude": ["unreachable"] * 3,
    "flat": [0.70, 0.75, 0.71],
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    where = tmp_path_factory.mktemp("cells")
    return compared(where, ACCURACIES, ("gflops=10%", "gflops=3%"))


def rows_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if "|" in line]


def test_the_terminal_shows_a_table_and_the_answer_for_every_budget(result):
    text = plain(terminal(result), width=80)
    assert "0.2 GFLOPs, 10 % of the full network" in text
    assert "0.06 GFLOPs, 3 % of the full network" in text
    assert text.count("ranp-f is more accurate than random and less accurate than full") == 0
    assert " ".join(text.split()).count("3 seeds support that ranp-f is more accurate than") == 2
    assert "out of reach" in text and "+50.0 %" in text
    assert "60.0 ± 1.0" in text and "57.5 to 62.5" in text
    assert max(map(len, text.splitlines())) <= 80


def test_markdown_holds_accuracy_costs_and_tests(result):
    rows = rows_of(markdown(result))
    accuracy = next(row for row in rows if row[0] == "ranp-f")
    assert accuracy[1:4] == ["80.0 ± 1.0", "77.5 to 82.5", "70.0 ± 1.0"]
    assert accuracy[4:6] == ["0.2040", "+2.0 %"]
    assert accuracy[6:] == ["5,000", "40.0", "12.5", "20.0"]
    assert len({len(row) for row in rows[:7]}) == 1
    difference = next(row for row in rows if row[0] == "random" and len(row) == 6)
    assert difference[1:4] == ["-20.0", "-22.5 to -17.5", "< 0.001"]
    assert difference[5] == "0.250"


def test_two_names_of_a_network_are_said_where_both_are_compared(result):
    first, *others = result["budgets"]
    (flat,) = (row for row in first["rows"] if row["same_as"])
    assert "same network" not in markdown(result)
    layerwise = {**flat, "method": "layerwise", "same_as": None}
    both = {**result, "budgets": [{**first, "rows": [*first["rows"], layerwise]}, *others]}
    assert markdown(both).count("flat is the same network as layerwise at a given cost.") == 1


def test_what_races_chose_and_cost_is_said(result):
    first, *others = result["budgets"]
    raced = next(row for row in first["rows"] if row["method"] == "ranp-f")
    races = [
        {"winner": "thin", "spent": 0.04, "caution": None},
        {"winner": "weighted", "spent": 0.05, "caution": "The dice has not risen."},
        {"winner": "thin", "spent": 0.03},  # stored by an earlier version
    ]
    runs = [{**run, "race": race} for run, race in zip(raced["runs"], races, strict=True)]
    row = {**raced, "method": "race", "runs": runs}
    text = markdown({**result, "budgets": [{**first, "rows": [*first["rows"], row]}, *others]})
    assert text.count("race chose") == 1
    assert (
        "race chose thin with seeds 0, 2 and weighted with seed 1, for at most 5 % of a training, "
        "which the costs do not include. With seed 1 no candidate of the race was seen to learn; "
        "let it cost more."
    ) in text


def test_csv_holds_every_method_and_every_run(result):
    summary = list(csv.DictReader(io.StringIO(summary_csv(result))))
    assert len(summary) == 10
    assert float(summary[1]["accuracy_mean"]) == pytest.approx(0.8)
    assert summary[3]["accuracy_mean"] == "" and summary[3]["reason"] == "it is unreachable"
    runs = list(csv.DictReader(io.StringIO(runs_csv(result))))
    assert len(runs) == 30
    assert [run["dice anterior"] for run in runs[:3]] == ["0.81", "0.8", "0.79"]
    assert {run["outcome"] for run in runs if run["method"] == "magnitude"} == {"unreachable"}


def test_the_page_has_a_point_for_every_network_and_names_its_budget(result):
    comparison = page(result, title="T")
    names = ["full", "ranp-f, 10%", "random, 10%", "flat, 10%"]
    names += ["ranp-f, 3%", "random, 3%", "flat, 3%"]
    assert [each.name for each in comparison.networks] == names
    assert comparison.metric == "Dice, %"
    assert "3 seeds" in comparison.interval
    html = render_comparison(comparison)
    assert html.count('class="dot"') == 3 * 7 + 4 + 2  # points, colours and shapes
    assert html.count('<rect class="dot"') == 3 * 3 + 1  # the second budget
    assert "What the data support" in html and "CPU seconds (measured)" in html


def test_the_page_begins_with_frontiers_and_says_what_is_lost_and_gained(tmp_path):
    accuracies = {"full": [0.9, 0.92, 0.91], "ranp-f": [0.8, 0.83, 0.79], "thin": [0.7, 0.74, 0.72]}
    comparison = page(compared(tmp_path, accuracies), title="T")
    html = render_comparison(comparison)
    assert html.index('class="frontier') < html.index("What the data support")
    assert html.count('class="frontier') == 2
    # Differences, seed by seed: -10, -9, -12 and 10, 9, 7 points; t of 2 degrees is 4.303.
    first = comparison.answers[0][1][0]
    assert first.startswith(
        "ranp-f is 10.33 points below the full network (95 % interval -14.13 to -6.54, 3 seeds, p"
    )
    assert "8.67 points above thinning by hand (95 % interval +4.87 to +12.46" in first


def test_one_budget_needs_no_names_of_budgets(tmp_path):
    one = compared(tmp_path, {"full": [0.9], "ranp-f": [0.8]})
    comparison = page(one, title="T")
    assert [each.name for each in comparison.networks] == ["full", "ranp-f"]
    assert comparison.networks[0].interval is None
    assert plain(terminal(one)).count("80.0") == 1


def test_whiskers_end_where_accuracy_does(tmp_path):
    wild = compared(tmp_path, {"ranp-f": [0.1, 0.9], "random": [0.2, 0.3]})
    html = render_comparison(page(wild, title="T"))
    assert "-458.25 to 558.25" in html  # 50 +- 12.706 x 56.57 / sqrt(2)
    labels = re.findall(r'<text class="y"[^>]*>([^<]*)</text>', html)
    assert {"0", "100"} <= set(labels) and all(0 <= float(label) <= 100 for label in labels)


def test_the_picture_is_the_same_every_time(result, tmp_path):
    for name in ("a.svg", "b.svg"):
        draw_comparison(tmp_path / name, result)
    first = (tmp_path / "a.svg").read_bytes()
    assert first == (tmp_path / "b.svg").read_bytes()
    assert first.count(b'<g id="axes_') == 2
