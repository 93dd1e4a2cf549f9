from __future__ import annotations

import json
import os
import signal
from collections import Counter

import pytest

from ranp.errors import UsageError
from ranp.experiments.cells import CpuClock, TrainingCell, TrainingCells, data_fingerprint
from ranp.resources.budgets import Budget
from ranp.signals import Interrupted
from ranp.slimming import Plan
from ranp.training.networks import build_network
from ranp.trials.store import Store


def kinds(store: Store) -> Counter[str]:
    records = store.directory.glob("*/record.json")
    return Counter(json.loads(path.read_text())["cell"]["kind"] for path in records)


def compute(cells: TrainingCells, *wanted: TrainingCell) -> list[dict]:
    plain = [cell.to_dict() for cell in wanted]
    cells.store.complete(plain, cells)
    return [cells.store.result(cell) for cell in plain]


def test_a_cell_is_what_has_an_influence(tiny):
    budget = Budget("gflops", 0.01)
    cell = TrainingCell(tiny(pruning__method="ranp-f", seed=3), budget, "cases")
    assert (
        TrainingCell.from_dict(json.loads(json.dumps(cell.to_dict()))).to_dict() == cell.to_dict()
    )
    # With a budget the recipe's sparsity is not used, and the full network uses neither.
    thinner = tiny(pruning__method="ranp-f", pruning__sparsity=0.3, seed=3)
    other = TrainingCell(thinner, budget, "cases")
    assert other.to_dict() == cell.to_dict()
    assert TrainingCell(tiny(pruning__lam=3)).to_dict() == TrainingCell(tiny()).to_dict()
    for change in (
        TrainingCell(tiny(pruning__method="ranp-f", seed=4), budget, "cases"),
        TrainingCell(tiny(pruning__method="ranp-f", seed=3), Budget("gflops", 0.02), "cases"),
        TrainingCell(tiny(pruning__method="ranp-f", seed=3), budget, "others"),
        TrainingCell(tiny(pruning__method="ranp-f", pruning__floor=2, seed=3), budget, "cases"),
    ):
        assert change.to_dict() != cell.to_dict()


@pytest.mark.parametrize(
    ("budget", "stored"),
    [
        (Budget("gflops", 0.3), {"resource": "gflops", "amount": 0.3}),
        (Budget("flops", 3e8), {"resource": "gflops", "amount": 0.3}),
        (Budget("activations", 3 * 2**20), {"resource": "memory", "amount": 3.0}),
        (Budget("params", 900), {"resource": "params", "amount": 900}),
    ],
)
def test_budgets_are_stored_as_in_the_first_stores(tiny, budget, stored):
    """There "memory" was the activations', in MB: cells that were computed then still count."""
    cell = TrainingCell(tiny(pruning__method="ranp-f"), budget).to_dict()
    assert cell["budget"] == stored
    assert TrainingCell.from_dict(cell).to_dict() == cell


def test_the_full_network_takes_no_budget(tiny):
    with pytest.raises(UsageError, match="takes no budget"):
        TrainingCell(tiny(), Budget("gflops", 0.01))


def test_the_cases_count_and_not_where_they_lie(tiny, crops, tmp_path):
    moved = tmp_path / "elsewhere"
    moved.symlink_to(crops)
    assert data_fingerprint(tiny(), moved) == data_fingerprint(tiny(), crops) is not None
    assert data_fingerprint(tiny(data__fold=1), crops) != data_fingerprint(tiny(), crops)
    assert data_fingerprint(tiny(), None) is None


def test_methods_of_a_seed_come_to_the_budget_and_share_their_scores(tiny, crops, tmp_path):
    cells = TrainingCells(Store(tmp_path), crops)
    budget = Budget("params", 900)
    wanted = [
        TrainingCell(tiny(pruning__method=method, epochs=1), budget)
        for method in ("ranp-f", "weighted", "magnitude")
    ]
    results = compute(cells, *wanted, TrainingCell(tiny(epochs=1)))
    # Scores with data for two methods, of the weights alone for the third.
    assert kinds(cells.store) == {"training": 4, "scores": 2}
    full = build_network(tiny().network)
    parameters = sum(p.numel() for p in full.parameters())
    for cell, result in zip(wanted, results, strict=False):
        place = cells.store.place(cell.to_dict())
        slim = Plan.load(place / "plan.json").apply(full)
        assert result["outcome"] == "trained"
        assert result["parameters"] == sum(p.numel() for p in slim.parameters())
        assert result["deviation"] == pytest.approx(result["parameters"] / 900 - 1)
        assert abs(result["deviation"]) < 0.15  # a neuron has up to 218 of them
        assert result["full"]["parameters"] == parameters
        record = json.loads((place / "run" / "record.json").read_text())
        assert result["accuracy"] == record["metrics"]["dice"]["last"]
        assert result["cpu_seconds"] > 0 < result["step_mb"]
    assert results[3]["parameters"] == parameters
    assert results[3]["deviation"] is None and results[3]["sparsity"] is None


def test_a_sparsity_will_do_as_well(tiny, crops, tmp_path):
    cells = TrainingCells(Store(tmp_path), crops)
    config = tiny(pruning__method="layerwise", pruning__sparsity=0.5, epochs=1)
    (result,) = compute(cells, TrainingCell(config))
    assert (result["outcome"], result["sparsity"]) == ("trained", 0.5)
    assert result["neurons"] < result["full"]["neurons"]


def test_what_cannot_be_reached_is_a_result_with_the_nearest_figure(tiny, crops, tmp_path):
    cells = TrainingCells(Store(tmp_path), crops)
    config = tiny(pruning__method="layerwise")
    (result,) = compute(cells, TrainingCell(config, Budget("params", 50)))
    assert result["outcome"] == "unreachable"
    assert "cannot reach 50" in result["reason"]
    assert result["deviation"] == pytest.approx(result["parameters"] / 50 - 1)
    assert result["deviation"] > 0
    assert "accuracy" not in result
    assert not list(tmp_path.glob("*/run"))


def test_a_run_that_diverges_is_a_result_too(tiny, crops, tmp_path):
    config = tiny(optimizer={"name": "sgd", "lr": 1e30})
    (result,) = compute(TrainingCells(Store(tmp_path), crops), TrainingCell(config))
    assert result["outcome"] == "diverged"
    assert "optimizer.lr" in result["reason"]


def test_interrupted_in_an_epoch_a_cell_goes_on_there(tiny, crops, tmp_path, monkeypatch):
    steps = []

    def on_step(clock, step) -> None:
        steps.append((step.epoch, step.batch))
        if len(steps) == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(CpuClock, "on_step", on_step)
    cells = TrainingCells(Store(tmp_path / "stopped"), crops)
    cell = TrainingCell(tiny(pruning__method="ranp-f"), Budget("params", 900))
    with pytest.raises(Interrupted):
        compute(cells, cell)
    assert cells.store.result(cell.to_dict()) is None
    plan = (cells.store.place(cell.to_dict()) / "plan.json").read_bytes()
    (result,) = compute(cells, cell)
    # Eight cases in batches of two, two epochs: every step once.
    assert steps == [(epoch, batch) for epoch in (1, 2) for batch in (1, 2, 3, 4)]
    assert (cells.store.place(cell.to_dict()) / "plan.json").read_bytes() == plan
    monkeypatch.undo()
    (unbroken,) = compute(TrainingCells(Store(tmp_path / "unbroken"), crops), cell)
    timed = {"seconds", "cpu_seconds"}
    assert {k: v for k, v in result.items() if k not in timed} == {
        k: v for k, v in unbroken.items() if k not in timed
    }


def test_generated_data_is_made_once_and_never_of_half_a_set(tiny, tmp_path):
    config = tiny(epochs=1, data__cases=6)
    cells = TrainingCells(Store(tmp_path))
    first = cells.data_directory(config)
    assert cells.data_directory(tiny(epochs=1, data__cases=6, seed=5)) == first
    place = first.parent
    (place / "record.json").unlink()  # as if the process had been killed before it was whole
    second = cells.data_directory(config)
    assert second != first and second.parent == place
    assert sorted(p.name for p in (second / "imagesTr").iterdir()) == sorted(
        p.name for p in (first / "imagesTr").iterdir()
    )
    (result,) = compute(cells, TrainingCell(config))
    assert result["outcome"] == "trained"
    assert kinds(cells.store) == {"generated data": 1, "training": 1}
    assert not list(tmp_path.glob("*/run/data"))
