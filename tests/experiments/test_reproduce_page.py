"""What the page of a reproduced table is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ranp.experiments.reproduce.page import compare_group, make_page
from ranp.experiments.reproduce.study import Study
from ranp.experiments.reproduce.tables import RowCells, time_figures
from ranp.report.comparison import Comparison
from ranp.report.table import Column, ComparisonTable, Figure, Row
from ranp.trials import store
from ranp.trials.store import Store

COLUMNS = (
    Column("gflops", "GFLOPs"),
    Column("param_mb", "Param (MB)"),
    Column("miou", "mIoU (%)"),
    Column("iou ET", "ET (%)"),
    Column("cpu_seconds", "CPU s"),
)
COSTS = {"gflops": Figure((7.5, 8.5), 7.54), "param_mb": Figure((1.0,), 1.0)}


def compared(*figures: dict[str, Figure], seeds: int = 2, **options: Any) -> Comparison | None:
    rows = tuple(Row("net", f"row {i}", {**COSTS, **each}) for i, each in enumerate(figures))
    table = ComparisonTable("T", COLUMNS, rows, **options)
    (group,) = table.groups()
    return compare_group(table, group, seeds)


def test_accuracy_is_the_first_metric_that_was_measured_against_the_costs_of_the_table():
    trained = {
        "miou": Figure((), 83.0),
        "iou ET": Figure((70.0, 72.0)),
        "cpu_seconds": Figure((3,)),
    }
    comparison = compared(trained, {"miou": Figure((), 82.0)}, checked=False)
    assert comparison is not None and comparison.metric == "ET (%)"
    (network,) = comparison.networks
    assert (network.name, network.accuracy, network.runs) == ("row 0", 71.0, 2)
    assert network.costs == {"gflops": 8.0, "cpu_seconds": 3.0}


def test_of_several_seeds_the_interval_is_that_of_their_mean():
    comparison = compared({"miou": Figure((80.0, 82.0))}, {"miou": Figure((80.0,), spread=3.0)})
    assert comparison is not None and "2 seeds" in comparison.interval
    first, alone = comparison.networks
    # t of 97.5 % with one degree of freedom is 12.706; s / sqrt(2) of 80 and 82 is 1.
    assert first.interval == pytest.approx((81 - 12.7062, 81 + 12.7062), abs=1e-4)
    assert alone.interval is None  # the other seed diverged


def test_of_one_seed_it_is_the_deviation_over_the_last_epochs():
    comparison = compared({"miou": Figure((80.0,), spread=3.0)}, {"miou": Figure((70.0,))}, seeds=1)
    assert comparison is not None and "last epochs" in comparison.interval
    assert [each.interval for each in comparison.networks] == [(77.0, 83.0), None]


def test_at_the_papers_size_its_networks_stand_beside_ours():
    trained = {"miou": Figure((80.0, 82.0), 83.79, printed_spread=0.2)}
    comparison = compared(trained, {"miou": Figure((81.0, 81.5))})
    assert comparison is not None
    assert [(each.name, each.group) for each in comparison.networks] == [
        ("row 0", "ours"),
        ("row 1", "ours"),
        ("row 0, the paper's", "the paper's"),
    ]
    paper = comparison.networks[2]
    assert (paper.accuracy, paper.costs, paper.series) == (83.79, {"gflops": 7.54}, "row 0")


def test_nothing_is_compared_where_nothing_was_trained():
    assert compared({"miou": Figure((), 83.79)}) is None
    assert compared({}) is None


def complete(study: Study, cell: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    study.store.complete([cell], lambda _, place: result)
    return cell


def test_time_is_the_processors_unless_a_gpu_trained(tmp_path):
    study = Study(Store(tmp_path), "smoke", seeds=3)
    metrics = {"dice": {"mean": 0.4, "std": 0.1, "last": 0.5}}
    trained = {"outcome": "trained", "accuracy": 0.5, "goal": "dice", "metrics": metrics}
    costs = {"gflops": 1.0, "param_mb": 0.5, "memory_mb": 2.0, "neurons": 12}
    times = {
        **trained,
        **costs,
        "full": costs,
        "deviation": None,
        "seconds": 5.0,
        "cpu_seconds": 4.0,
    }
    cpu, gpu, diverged = (
        complete(study, {"kind": "training", "number": i}, result)
        for i, result in enumerate(
            [{**times, "device": "cpu"}, {**times, "device": "A100"}, {"outcome": "diverged"}]
        )
    )
    assert time_figures(study, RowCells((), (cpu, diverged))) == {"cpu_seconds": Figure((4.0,))}
    assert time_figures(study, RowCells((), (gpu,))) == {"seconds": Figure((5.0,))}
    assert time_figures(study, RowCells((), (diverged,))) == {}
    assert time_figures(study, RowCells(())) == {}


def test_the_page_tells_scale_seeds_data_and_versions(tmp_path, monkeypatch):
    study = Study(Store(tmp_path), "smoke", seeds=2, data={"brats": Path("b"), "ucf101": Path("u")})
    cells, diverged = [], {"outcome": "diverged"}
    for number, torch in enumerate(("2.9", "2.8")):
        monkeypatch.setattr(store, "versions", lambda torch=torch: {"ranp": "1.0", "torch": torch})
        cells.append(
            complete(study, {"kind": "training", "config": {"seed": number % 2}}, diverged)
        )
    table = ComparisonTable("T", COLUMNS, (Row("net", "full", COSTS),))
    page = make_page("table-capability", study, cells, table, command="ranp reproduce")
    assert dict(page.facts) == {
        "scale": "smoke",
        "seeds": "0, 1",
        "data": "brats, ucf101",
        "trained": "nothing",
    }
    assert page.about[0] == ("Cells", [("number", "2"), ("ranp", "1.0"), ("torch", "2.8, 2.9")])
    assert {"ranp", "torch", "system"} <= dict(page.about[1][1]).keys()
