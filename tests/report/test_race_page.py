"""The page of a race says who won, why, and what everyone reached."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ranp.report.race import render_race

RECORD = {
    "winner": "weighted",
    "why": "weighted is ahead of thin over two seeds.",
    "rungs": [{"check_ins": 1}, {"check_ins": 2}],
    "curves": {
        "thin": [{"dice": 0.1, "loss": 2.0}],
        "weighted": [{"dice": 0.25, "loss": 1.5}, {"dice": 0.5, "loss": 1.0}],
    },
    "again": {"weighted": [{"dice": 0.4, "loss": 1.25}]},
    "widths": {"thin": {"stem": 3, "head": 2}, "weighted": {"stem": 7, "head": 2}},
    "left_out": {"ranp-m": "it cannot come down <to> that"},
    "spent": 0.05,
    "stated": 0.075,
    "cpu_seconds": 12.0,
    "caution": None,
}


def test_who_won_and_what_everyone_reached() -> None:
    page = render_race(RECORD, "ranp race --network a:b")
    text = " ".join(re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL).split())
    assert "weighted wins the race weighted is ahead of thin over two seeds." in text
    assert "cost 5 % of the training that follows announced maximum 7.5 %" in text
    assert "thin 1 0.1 2 3 2" in text  # nothing with another seed
    assert "weighted ★ 2 0.5 1 0.4 1.25 7 2" in text
    assert "ranp-m : it cannot come down &lt;to&gt; that" in text
    assert "ranp race --network a:b" in text


def test_a_line_ends_with_a_dot_where_its_candidate_was_dropped() -> None:
    page = render_race(RECORD)
    lines = re.findall(r'class="line c(\d)" d="([^"]*)"', page)
    # Dice from 0.1 to 0.5 in 760 x 230: 0.25 is at 230 x (1 - 0.15 / 0.4).
    assert ("0", "M0.0 230.0") in lines and ("1", "M0.0 143.8L760.0 0.0") in lines
    dots = re.findall(r'class="line end c(\d)" d="([^"]*)"', page)
    assert ("0", "M0.0 230.0h0") in dots and ("1", "M760.0 0.0h0") in dots


def test_without_a_second_meeting_there_are_no_columns_for_it() -> None:
    alone, met = render_race({**RECORD, "again": {}}), render_race(RECORD)
    for text in ("other seed", "with a second seed"):
        assert text not in alone and text in met


def test_every_rung_is_marked_also_where_some_check_ins_say_less() -> None:
    line = {"dice": 0.5, "loss": 1.0}
    curves = {"thin": [line, {"dice": 0.5}, line], "weighted": [line, {"dice": 0.5}]}
    page = render_race({**RECORD, "curves": curves, "rungs": [{"check_ins": 2}, {"check_ins": 3}]})
    charts = re.findall(r'<svg class="lines".*?</svg>', page, flags=re.DOTALL)
    assert [re.findall(r"rung \d", chart) for chart in charts] == [["rung 1", "rung 2"]] * 2
    assert re.search(r"<td[^>]*>0.5</td><td[^>]*></td>", page)  # weighted ends without a loss


def _raced(**curves: list[float]) -> dict[str, Any]:
    lines = {
        name: [{"loss": 1.0, "dice": value} for value in curve] for name, curve in curves.items()
    }
    return {**RECORD, "curves": lines, "again": {}, "widths": {key: {"stem": 3} for key in curves}}


@pytest.mark.parametrize("caution", [None, "The dice has not risen."])
def test_a_race_that_says_little_says_so(caution: str | None) -> None:
    page = render_race({**RECORD, "caution": caution})
    assert ('<p class="caution">The dice has not risen.</p>' in page) == (caution is not None)


def test_a_single_candidate_has_learned_nothing_that_could_be_drawn() -> None:
    page = render_race({**_raced(thin=[]), "rungs": [{"check_ins": 0}]})
    assert "How they learned" not in page
    assert "How they learned" in render_race(RECORD)


def test_the_page_names_metrics_that_it_does_not_draw() -> None:
    line = dict.fromkeys(["dice", "loss", "liver", "spleen", "kidney", "aorta"], 0.5)
    page = render_race({**RECORD, "curves": {"thin": [line], "weighted": [line, line]}})
    assert page.count('<svg class="lines"') == 4
    assert "Not drawn: kidney, aorta." in page
    assert "Not drawn" not in render_race(RECORD)
