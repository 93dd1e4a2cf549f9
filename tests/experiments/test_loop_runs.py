"""Comparisons with one's own training loop."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from ranp.errors import UsageError
from ranp.experiments.loop_runs import compare
from tests.toy import SHAPE, check_ins, score_with


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 48, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 2),
    )  # fmt: skip


def train(model: nn.Module, seed: int) -> Iterator[dict[str, float]]:
    return check_ins(model, 6)


def run(path: Path, **options: Any) -> tuple[Any, list[str]]:
    lines: list[str] = []
    options = {
        "methods": ["full", "thin", "ranp-f"],
        "budget": {"flops": "20%"},
        "seeds": 2,
        "score_with": score_with(),
        **options,
    }
    return compare(build, train, out=path, tell=lines.append, **options), lines


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, list[str]]:
    """A comparison, its directory (of which tests take a copy) and what was told of it."""
    path = tmp_path_factory.mktemp("compared")
    return path, *run(path)


def test_methods_are_trained_at_one_cost_and_compared_with_thin(
    compared: tuple[Path, Any, list[str]],
) -> None:
    _, comparison, lines = compared
    assert lines[:4] == [
        *(f"run {i} of 6: {name}, seed 0" for i, name in enumerate(["full", "thin", "ranp-f"], 1)),
        "run 4 of 6: full, seed 1",
    ]
    (at,) = comparison.result["budgets"]
    rows = {row["method"]: row for row in at["rows"]}
    full = rows["full"]["means"]["gflops"]
    for name in ("thin", "ranp-f"):
        assert rows[name]["means"]["gflops"] == pytest.approx(0.2 * full, rel=0.05)
        assert len(rows[name]["runs"]) == 2
    assert comparison.result["goal"] == "accuracy"
    assert at["against_thin"].startswith("ranp-f is ")
    assert "ranp-f is " in " ".join(str(comparison).split())


def test_what_was_trained_is_not_trained_again(
    compared: tuple[Path, Any, list[str]], tmp_path: Path
) -> None:
    path, first, _ = compared
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    again, lines = run(tmp_path)
    assert lines == []
    assert again.result == first.result


def test_more_seeds_and_methods_train_only_what_is_new(
    compared: tuple[Path, Any, list[str]], tmp_path: Path
) -> None:
    shutil.copytree(compared[0], tmp_path, dirs_exist_ok=True)
    _, lines = run(tmp_path, seeds=3, methods=["full", "thin", "ranp-f", "power:-0.25"])
    # The third seed of three methods, and three seeds of another.
    assert len(lines) == 6


def test_the_race_is_a_method(tmp_path: Path) -> None:
    comparison, _ = run(
        tmp_path, methods=["thin", "race"], candidates=["thin", "power:0.5"], length=6, cost=0.7
    )
    (at,) = comparison.result["budgets"]
    assert comparison.result["reference"] == "race"
    rows = {row["method"]: row for row in at["rows"]}
    for run_ in rows["race"]["runs"]:
        assert run_["race"]["winner"] in ("thin", "power:0.5")
        assert run_["race"]["spent"] <= 0.7


def test_a_race_must_know_how_long_a_training_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give length"):
        run(tmp_path, methods=["race"])


def test_a_budget_out_of_reach_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    comparison, lines = run(tmp_path, methods=["thin", "vanilla"], budget={"flops": "1%"}, seeds=1)
    assert "vanilla cannot reach" in lines[0] and lines[0].endswith("floor=1 would")
    assert lines[1:] == ["run 1 of 1: thin, seed 0"]
    rows = {row["method"]: row for row in comparison.result["budgets"][0]["rows"]}
    assert rows["vanilla"]["outcomes"] == {"0": "unreachable"}


def test_methods_that_score_need_data(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"give score_with=\(loader, loss\)"):
        run(tmp_path, score_with=None, example_input=SHAPE)


def test_a_training_that_is_refused_at_a_check_in_is_closed(tmp_path: Path) -> None:
    seen: list[str] = []

    def train(model: nn.Module, seed: int) -> Iterator[dict[str, float]]:
        try:
            yield {"accuracy": 0.5, "loss": 0.3}
            yield {"accuracy": 0.5}
        finally:
            seen.append("closed")

    with pytest.raises(UsageError, match="the same names at every check-in") as refused:
        compare(build, train, methods=["thin"], seeds=1, example_input=SHAPE, out=tmp_path)
    assert seen == ["closed"]
    del refused  # kept until here, as whoever handles the error does


@pytest.mark.parametrize("jobs", [0, 2.5, True, "pbs"])
def test_jobs_that_make_no_sense_are_refused_at_once(tmp_path: Path, jobs: Any) -> None:
    with pytest.raises(UsageError, match=f"jobs must be a positive number or slurm, got {jobs!r}"):
        compare(build, train, jobs=jobs, example_input=SHAPE, out=tmp_path)


def test_two_processes_give_the_same_runs(tmp_path: Path) -> None:
    one, _ = run(tmp_path / "one", methods=["thin", "power"], seeds=2)
    two, _ = run(tmp_path / "two", methods=["thin", "power"], seeds=2, jobs=2)

    def curves(comparison: Any) -> list[Any]:
        return [
            run["curve"] for row in comparison.result["budgets"][0]["rows"] for run in row["runs"]
        ]

    assert curves(one) == curves(two)


def test_every_seed_has_a_random_network_of_its_own(tmp_path: Path) -> None:
    comparison, _ = run(tmp_path, methods=["random"], seeds=3)
    (row,) = comparison.result["budgets"][0]["rows"]
    assert len({run["gflops"] for run in row["runs"]}) > 1


def test_the_reference_is_compared_under_its_name_also_where_another_is_the_same(
    tmp_path: Path,
) -> None:
    methods = ["thin", "layerwise", "flat", "power:0.5"]
    comparison, _ = run(tmp_path, methods=methods)
    (at,) = comparison.result["budgets"]
    assert comparison.result["reference"] == "thin"
    rows = {row["method"]: row for row in at["rows"]}
    assert [name for name in methods if rows[name]["difference"]] == ["flat", "power:0.5"]
    assert [rows[name]["same_as"] for name in methods] == ["layerwise", None, None, None]
    assert at["against_thin"] == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"seeds": "3"}, "seeds must be at least 1, got '3'"),
        ({"budget": []}, "budget must name one resource"),
        ({"budget": 0.1}, r"a budget must be amounts by resource, .* got 0\.1"),
        ({"budget": [0.1]}, r"a budget must be amounts by resource, .* got 0\.1"),
        ({"methods": "thin"}, r"methods must be a list of names, got 'thin'; write \['thin'\]"),
        ({"budget": {"flops": "20%", "params": "20%"}}, "or be a list of such budgets"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(tmp_path, **given)
