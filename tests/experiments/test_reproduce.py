from __future__ import annotations

import functools
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from ranp.datasets import synthesise
from ranp.errors import UsageError
from ranp.experiments.paper import RESOURCES, capability, printed
from ranp.experiments.reproduce import EXPERIMENTS, find_experiment, reproduce
from ranp.experiments.reproduce import table_capability as capability_table
from ranp.experiments.reproduce import table_similar_resource as similar
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.scales import FOUR, PAIRS, Scale, input_shape
from ranp.experiments.reproduce.study import Study, with_parts
from ranp.files import canonical_json
from ranp.models import find_network
from ranp.report.table import ComparisonTable
from ranp.trials.store import Store
from tests.fresh import FORKS
from tests.report.tables import tables_of

NAMES = {
    "table-vanilla", "table-vanilla-full", "table-capability", "table-similar-resource",
    "table-initialisation", "table-transfer", "table-single-gpu", "fig-overview",
    "fig-importance", "fig-retained", "fig-sparsity", "fig-convergence", "fig-mnmg",
}  # fmt: skip
SHAPENET = PAIRS["unet3d-shapenet"]


def study(directory: Path, **options: object) -> Study:
    return Study(Store(directory / "cells"), **{"scale": "smoke", **options})


@pytest.fixture(scope="module")
def paper_sized(tmp_path_factory) -> Study:
    """Nothing of it is scored: only rows that need no data are computed."""
    return study(tmp_path_factory.mktemp("paper"), scale="paper", resources_only=True)


def quiet(cell, done, of):
    pass


def test_all_tables_and_figures_declare_their_cells(tmp_path):
    assert set(EXPERIMENTS) == NAMES
    for experiment in EXPERIMENTS.values():
        exhibit = experiment.declare(study(tmp_path))
        assert exhibit.cells
        assert (exhibit.draw is not None) is experiment.name.startswith("fig")


def test_convergence_has_a_curve_for_each_seed(tmp_path):
    cells = find_experiment("fig-convergence").declare(study(tmp_path, seeds=2)).cells
    trained = [(cell["config"]["batch"], cell["config"]["seed"]) for cell in cells]
    assert trained == [(1, 0), (1, 1), (4, 0), (4, 1)]
    # Each seed's network is pruned by that seed's scores.
    plans = [cell.get("plan") for cell in cells]
    assert [plan and plan["scores"]["seed"] for plan in plans] == [None, None, 0, 1]


def test_an_unknown_name_is_refused_with_a_suggestion():
    with pytest.raises(UsageError, match="Did you mean 'table-vanilla'"):
        find_experiment("table-vanila")


@pytest.mark.parametrize("pair", FOUR, ids=lambda pair: pair.name)
def test_the_papers_scale_is_that_of_the_registry(pair):
    spec, config = find_network(pair.name), pair.config("paper")
    assert input_shape(config) == spec.input_shape
    assert config.network.options["classes"] == spec.classes
    assert (config.pruning.sparsity, config.pruning.lam) == (spec.sparsity, spec.lam)


def test_deep_networks_have_23_layers_at_the_papers_scale(paper_sized):
    cell = paper_sized.full(PAIRS["unet3d-23-brats"])
    paper_sized.complete([cell], quiet)
    assert len(paper_sized.result(cell)["layers"]) == 23


@pytest.mark.parametrize(
    ("name", "method", "options"),
    [
        ("unet3d-shapenet", "snip", None),
        ("unet3d-brats", "snip-authors", {"loss": "authors"}),
        ("mobilenetv2-ucf101", "snip-authors", {"divisor": 1}),
        ("i3d-ucf101", "snip", {"divisor": 1}),
    ],
)
def test_the_papers_rows_go_by_the_authors_rules(name, method, options, paper_sized):
    row = capability_table.make_row(paper_sized, PAIRS[name], "snip")
    (cell,) = row.cells.choices
    assert (cell["method"], cell["scores"].get("options")) == (method, options)


@pytest.mark.parametrize("scale", get_args(Scale))
@pytest.mark.parametrize("pair", PAIRS.values(), ids=lambda pair: pair.name)
def test_every_metric_that_the_paper_prints_is_one_that_training_measures(pair, scale):
    measured = {
        "parts": {"miou"},
        "brats": {"iou ET", "iou TC", "iou WT"},
        "classification": {"top1", "top5"},
    }
    assert set(pair.metrics) == measured[pair.config(scale).task]


@pytest.mark.parametrize("pair", FOUR, ids=lambda pair: pair.name)
def test_rows_that_need_no_data_are_the_papers_to_the_last_digit(pair, paper_sized):
    rows = []
    for method in ("full", "layerwise", "random"):
        row = capability_table.make_row(paper_sized, pair, method)
        assert row.exact and row.printed == capability(pair.name)[method]
        paper_sized.complete(row.cells.choices, quiet)
        rows.append(row.show(paper_sized))
    table = ComparisonTable("", (), tuple(rows), tolerance=printed()["tolerance"])
    assert [table.verdict(row) for row in rows] == ["exact"] * 3
    for row in rows:
        assert all(row.figures[key].exact for key in RESOURCES)


@pytest.mark.parametrize("resource", ["gflops", "memory"])
@pytest.mark.parametrize("method", ["random", "layerwise"])
@pytest.mark.parametrize("name", ["unet3d-shapenet", "unet3d-brats"])
def test_baselines_at_the_papers_budget_come_near_its_similar_resource_rows(
    name, method, resource, paper_sized
):
    """They depend on no data: what differs is how the budget was met there."""
    row = similar.make_row_at_papers_budget(paper_sized, PAIRS[name], method, resource)
    (cell,) = row.cells.choices
    paper_sized.complete([cell], quiet)
    result = paper_sized.result(cell)
    assert abs(result["deviation"]) < 0.01
    assert result["sparsity"] == pytest.approx(row.printed["sparsity"], abs=0.02)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Study, Path]:
    directory = tmp_path_factory.mktemp("small")
    return study(directory, resources_only=True), directory / "out"


@pytest.fixture(scope="module")
def made(small) -> Callable[[str], tuple[ComparisonTable, list[Path]]]:
    """Makes tables and figures of that study, each once: drawing takes most of the time."""
    of_smoke, out = small
    return functools.cache(lambda name: reproduce(name, of_smoke, out))


@pytest.mark.parametrize("name", ["fig-importance", "fig-retained", "fig-mnmg"])
def test_three_of_them_in_the_smallest_size(name, made):
    table, files = made(name)
    check_files(name, files)
    check_page(table, files[-1])
    networks = {row.group for row in table.rows}
    assert networks == {"3D-UNet, ShapeNet", "3D-UNet, BraTS'18"}
    assert len(table.rows) == 2 * 15


def check_files(name: str, files: list[Path]) -> None:
    endings = [".md", ".csv", ".json"]
    endings += [".png", ".svg"] if name.startswith("fig") else []
    endings += [".html"]
    assert [path.suffix for path in files] == endings
    for path in files:
        assert path.stem == name and path.stat().st_size > 200
    content = json.loads(files[2].read_text())
    assert content["name"] == name and content["rows"]
    if name.startswith("fig"):
        assert files[3].read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in files[4].read_bytes()


def check_page(table: ComparisonTable, page: Path) -> None:
    """The tables of a page hold the figures, and it is one file below a megabyte."""
    text = page.read_text()
    assert len(text.encode()) < 2**20
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    for group, shown in zip(table.groups(), tables_of(text), strict=True):
        assert len(shown.rows) == 1 + len(group.rows)
        headings = [cell.text for cell in shown.rows[0]]
        for row, cells in zip(group.rows, shown.rows[1:], strict=True):
            assert cells[0].text.startswith(" ".join(row.label.replace("`", "").split()))
            for column in group.columns:
                cell = cells[headings.index(column.title)]
                assert cell.text == " ".join(table.cell(row, column).split())
                mean = row.figures[column.key].mean if column.key in row.figures else None
                assert cell.value == ("" if mean is None else repr(mean))


def test_a_second_run_computes_nothing_and_gives_the_same_files(small, made):
    of_smoke, out = small
    _, files = made("fig-retained")
    before = [path.read_bytes() for path in files]
    told = []
    _, files = reproduce("fig-retained", of_smoke, out, lambda *cell: told.append(cell))
    assert told == []
    assert [path.read_bytes() for path in files] == before


@pytest.fixture
def unpictured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are files, and nothing is drawn: that takes most of the time."""
    drawing = "ranp.experiments.reproduce.fig_retained.draw_retained_ratio"
    monkeypatch.setattr(drawing, lambda table: None)

    def save(figure: None, *paths: Path) -> None:
        for path in paths:
            path.write_bytes(b"")

    monkeypatch.setattr("ranp.report.figures.save_figure", save)


def test_rows_of_other_code_are_marked(small, unpictured, tmp_path):
    of_smoke, _ = small
    table, _ = reproduce("fig-retained", of_smoke, tmp_path)
    assert not any("another version" in text for text in table.about)
    later = replace(of_smoke, store=Store(of_smoke.store.directory, code="now"))
    table, files = reproduce("fig-retained", later, tmp_path)
    assert table.about[-1].startswith("8 of 8 cells were computed by another version of the code")
    assert "8 of 8 cells were computed by another version of the code" in files[-1].read_text()
    row = capability_table.make_row(later, SHAPENET, "ranp-f").show(later)
    assert row.note == "Computed by another version of the code."


def test_what_a_cell_is_made_of_is_computed_with_it(tmp_path):
    """Whatever a cell needs may still be in the hands of another process, or of none."""
    of_smoke = study(tmp_path, resources_only=True)
    cell = of_smoke.choice(SHAPENET, "vanilla", Amount(sparsity=0.5), 0)
    assert of_smoke.store.complete([cell], of_smoke.compute) == 1
    assert of_smoke.store.missing([cell["scores"]]) == []


def test_methods_share_the_scores_of_a_seed_and_seeds_share_what_has_none(tmp_path):
    of_smoke = study(tmp_path, seeds=2)
    amount = Amount(sparsity=0.5)
    first = of_smoke.choice(SHAPENET, "ranp-f", amount, 0)
    assert first["scores"] == of_smoke.choice(SHAPENET, "vanilla", amount, 0)["scores"]
    assert first["scores"] != of_smoke.choice(SHAPENET, "ranp-f", amount, 1)["scores"]
    layerwise = [of_smoke.choice(SHAPENET, "layerwise", amount, seed) for seed in (0, 1)]
    assert layerwise[0] == layerwise[1] and layerwise[0]["scores"] is None


def test_all_of_them_together_score_a_network_once_for_each_seed_and_kind_of_weights(tmp_path):
    of_paper = study(tmp_path, scale="paper", seeds=3, resources_only=True)
    declared = [e.declare(of_paper) for e in EXPERIMENTS.values() if e.name != "fig-convergence"]
    cells = with_parts([cell for exhibit in declared for cell in exhibit.cells])
    times = Counter(
        (canonical_json(cell["network"]), cell["weights"])
        for cell in cells
        if cell["kind"] == "scores of samples"
    )
    # Table 7 asks for orthogonal weights, Tables 4 and 5 for 23 layers.
    assert Counter(weights for _, weights in times) == {"fresh": 4 + 2, "orthogonal": 4}
    assert set(times.values()) == {3}


@pytest.mark.parametrize("method", ["random", "layerwise"])
@pytest.mark.parametrize("resource", ["gflops", "memory"])
def test_baselines_are_brought_to_what_ranp_costs(small, method, resource):
    of_smoke, _ = small
    row = similar.make_row(of_smoke, SHAPENET, method, resource)
    ranp = capability_table.make_row(of_smoke, SHAPENET, "ranp-f")
    of_smoke.complete([*row.cells.choices, *ranp.cells.choices], quiet)
    key = "gflops" if resource == "gflops" else "memory_mb"
    (reached,), (budget,) = (
        [of_smoke.result(cell)["costs"][key] for cell in each.cells.choices] for each in (row, ranp)
    )
    # The networks of this scale are tiny: a neuron is up to a few per cent of one.
    assert reached == pytest.approx(budget, rel=0.04)


def test_a_layer_that_would_be_emptied_keeps_a_neuron_and_is_named(small):
    of_smoke, _ = small
    cell = of_smoke.choice(SHAPENET, "vanilla", Amount(sparsity=0.97), 0)
    of_smoke.complete([cell], quiet)
    result = of_smoke.result(cell)
    kept = dict(zip(result["layers"], result["kept"], strict=True))
    assert result["emptied"]
    assert all(kept[layer] == 1 for layer in result["emptied"])


def test_data_that_is_not_there_is_left_out_or_asked_for(tmp_path):
    partial = study(tmp_path, data={"brats": tmp_path})
    assert [pair.name for pair in partial.pairs(FOUR)] == ["unet3d-brats"]
    with pytest.raises(UsageError, match="directory shapenet"):
        partial.pairs([SHAPENET])
    with pytest.raises(UsageError, match="no directory 'shapenet'"):
        EXPERIMENTS["table-transfer"].declare(partial)


def test_a_data_set_on_disk_is_scored_wherever_it_lies(tmp_path):
    synthesise("brats", tmp_path / "here", cases=5, size=24, seed=0)
    (tmp_path / "there").symlink_to(tmp_path / "here")
    here, there = (study(tmp_path, data={"brats": tmp_path / p}) for p in ("here", "there"))
    brats = PAIRS["unet3d-brats"]
    cell = here.scores(brats, 0)
    assert cell == there.scores(brats, 0) and cell["cases"] is not None
    assert cell != study(tmp_path).scores(brats, 0)
    assert here.complete([cell], quiet) == 1
    assert there.complete([cell], quiet) == 0
    assert there.result(cell)["batches"] == 4  # of five cases one validates


def begin(directory: Path) -> None:
    reproduce("fig-retained", study(directory, resources_only=True), directory / "out")


def test_killed_half_way_and_started_again_nothing_is_computed_twice(tmp_path, unpictured):
    process = FORKS.Process(target=begin, args=(tmp_path,))
    process.start()
    while len(records := list(tmp_path.glob("cells/*/record.json"))) < 2:
        assert process.is_alive()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    records = list(tmp_path.glob("cells/*/record.json"))
    before = {path: path.stat().st_mtime_ns for path in records}

    told = []
    of_smoke = study(tmp_path, resources_only=True)
    table, _ = reproduce("fig-retained", of_smoke, tmp_path / "out", lambda *c: told.append(c))
    assert table.rows
    total = len(list(tmp_path.glob("cells/*/record.json")))
    assert total == 2 + 6  # two networks scored, three methods on each
    assert len(told) == total - len(before)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_one_of_them_ends_on_generated_data(name, everything):
    table, files = reproduce(name, everything, everything.store.directory.parent / "out")
    check_files(name, files)
    check_page(table, files[-1])
    scatters = files[-1].read_text().count('class="scatter"')
    assert (scatters > 0) is EXPERIMENTS[name].trains
    trained = [
        figure
        for row in table.rows
        for key, figure in row.figures.items()
        if key in ("miou", "iou ET", "top1")
    ]
    assert bool(trained) is EXPERIMENTS[name].trains
    assert all(figure.ours for figure in trained)


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> Study:
    return study(tmp_path_factory.mktemp("everything"))
