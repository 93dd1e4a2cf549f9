"""`ranp bench`: targets, options, record and picture."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ranp as library
from ranp.files import read_sealed_json
from ranp.models import build_network, find_network
from tests.cli.factories import small


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    monkeypatch.setattr("ranp.speed.bench.others_running", lambda: 0.0)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """MobileNetV2 at a quarter of its width."""
    name = "mobilenetv2-ucf101"
    model = build_network(name)
    shape = find_network(name).input_shape
    made = library.plan(model, sparsity=0.75, method="layerwise", example_input=shape)
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    replace(made, network=name).save(path)
    return path


def test_a_plan_is_measured_against_its_network(ranp, plan, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    options = ("--sizes", "32", "--batches", "1,2", "--mode", "inference", "--repetitions", "1")
    done = ranp("bench", plan, *options, "--out", out, "--json")
    assert done.code == 0, done.err
    record = done.json
    assert [c["shape"] for c in record["comparisons"]] == [[n, 3, 16, 32, 32] for n in (1, 2)]
    costs = library.Plan.load(plan).costs
    for comparison in record["comparisons"]:
        assert comparison["theoretical"] == costs["full"]["gflops"] / costs["slim"]["gflops"]
        measured = comparison["full"]["seconds"] / comparison["slim"]["seconds"]
        assert comparison["realised"] == pytest.approx(measured / comparison["theoretical"])
    stored = read_sealed_json(out / "bench.json", "bench")
    assert stored["comparisons"] == record["comparisons"]
    assert (out / "bench.png").read_bytes()[1:4] == b"PNG"


def test_the_table_names_the_machine(ranp, plan):
    options = ("--sizes", "32", "--batches", "1", "--mode", "inference", "--repetitions", "1")
    done = ranp("bench", plan, *options)
    assert done.code == 0, done.err
    assert "mobilenetv2-ucf101, layerwise, as they are" in done.out and "load" in done.out
    assert "realised" in done.out and "ranp doctor" in done.err


def test_a_stored_plan_imports_no_code(ranp, tmp_path):
    own, plan = "tests.cli.factories:small", tmp_path / "plan.json"
    made = library.plan(small(), sparsity=0.3, method="layerwise", example_input=(1, 1, 8, 8, 8))
    replace(made, network=own).save(plan)
    options = ("--batches", "1", "--mode", "inference", "--repetitions", "1", "--json")
    refused = ranp("bench", plan, *options)
    assert refused.code == 2
    assert f"name it again: --network {own}" in refused.err
    for target in (plan, plan.parent):  # the directory is what `ranp prune --out` wrote
        assert ranp("bench", target, "--network", own, *options).json["network"] == own


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("unet3d-shapnet",), "Did you mean 'unet3d-shapenet'"),
        (("my.module:make",), "prune 'my.module:make' first, and name its plan"),
        (
            ("unet3d-shapenet", "--batches", "one"),
            "--batches must be whole numbers above 0, got 'one'",
        ),
        (("unet3d-shapenet", "--sizes", "0"), "--sizes must be whole numbers above 0, got '0'"),
    ],
)
def test_errors_say_what_to_do(ranp, arguments, message):
    done = ranp("bench", *arguments)
    assert done.code == 2 and message in done.err


def test_a_busy_machine_is_refused(ranp, plan, monkeypatch):
    monkeypatch.setattr("ranp.speed.bench.others_running", lambda: 1.5)
    done = ranp("bench", plan, "--sizes", "32")
    assert done.code == 2 and "busy (1.5 other threads running" in done.err
