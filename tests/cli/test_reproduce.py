"""The command line of `reproduce`; what it computes is tested with the experiments."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_list_names_all_of_them(ranp):
    outcome = ranp("reproduce", "--list", "--json")
    assert outcome.code == 0
    assert len(outcome.json) == 13
    assert {"name": "table-initialisation", "paper": "Table 7"}.items() <= outcome.json[4].items()
    readable = ranp("reproduce", "--list").out
    assert all(experiment["name"] in readable for experiment in outcome.json)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say which: table-vanilla, "),
        (["fig-importanc"], "Did you mean 'fig-importance'?"),
        (["fig-mnmg", "--scale", "huge"], "'huge' is not one of"),
        (["fig-mnmg", "--seeds", "0"], "--seeds"),
        (["fig-mnmg", "--data", "nowhere"], "data directory 'nowhere' does not exist"),
        (["fig-mnmg", "--data", "."], "has none of the directories shapenet, brats, ucf101"),
        (["fig-convergence", "--resources-only"], "fig-convergence is about training"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    ranp, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    outcome = ranp("reproduce", *arguments)
    assert outcome.code == 2
    assert message in outcome.err.splitlines()[-1]


def write_nothing(figure: None, *paths: Path) -> None:
    for path in paths:
        path.write_bytes(b"")


def test_a_figure_is_written_and_told_of(ranp, tmp_path, monkeypatch):
    # What is drawn is tested with the experiments, and takes longer than all the rest.
    drawing = "ranp.experiments.reproduce.fig_importance.draw_importance"
    monkeypatch.setattr(drawing, lambda panels, shared: None)
    monkeypatch.setattr("ranp.report.figures.save_figure", write_nothing)
    arguments = ("reproduce", "fig-mnmg", "--scale", "smoke", "--out", tmp_path)
    outcome = ranp(*arguments)
    assert outcome.code == 0
    assert "MNMG-sum" in outcome.out and "decoder.2.conv2" in outcome.out
    assert "0/6 cells done; now scoring unet3d on shapenet" in outcome.err
    assert f"{tmp_path / 'smoke' / 'fig-mnmg.md'}" in outcome.err
    page = tmp_path / "smoke" / "fig-mnmg.html"
    assert outcome.err.splitlines()[-1] == (
        f"Next: open {page} in a browser, or ranp reproduce fig-mnmg --scale paper"
    )
    assert (
        f"<code>ranp reproduce fig-mnmg --scale smoke --out {tmp_path}</code>" in page.read_text()
    )
    again = ranp(*arguments, "--json", "--quiet")
    assert again.err == ""
    assert len(again.json["rows"]) == 30
    assert [name.rpartition(".")[2] for name in again.json["files"]] == [
        "md", "csv", "json", "png", "svg", "html",
    ]  # fmt: skip
