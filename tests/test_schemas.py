"""Row 35: a file with a good seal and a wrong schema or range is refused, naming the field."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from torch import nn

import ranp
from ranp.errors import IntegrityError
from ranp.files import (
    load_tensors,
    read_sealed_json,
    save_tensors,
    write_sealed_json,
    write_text,
)
from ranp.pruning import Scores
from ranp.resources.measuring import Measured
from ranp.schemas import read_epochs, read_file, seal_epochs
from ranp.slimming import Plan, load_weights, save_weights
from ranp.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from ranp.trials.store import Store
from tests.faults.stored import edited

HASH = "0" * 64
VERSIONS = {"ranp": "1", "torch": "2"}
COSTS = {"gflops": 1.5, "param_mb": 0.5, "memory_mb": 2.0, "neurons": 12}
STORED = {
    "run": {
        "config": {"recipe": "small", "epochs": 1},
        "data": None,
        "plan": HASH,
        "transfer": False,
    },
    "data": {"fingerprint": HASH, "train": ["a", "b"], "validation": ["c"]},
    "record": {
        "recipe": "small",
        "metrics": {"dice": {"mean": 0.5, "std": 0.0, "last": 0.5}},
        "goal": "dice",
        "epochs": 1,
        "seconds": 2.5,
        "full": COSTS,
        "slim": {**COSTS},
        "seed": 0,
    },
    "cell": {"cell": {"seed": 1}, "result": {"dice": 1}, "seconds": 1.5, "versions": VERSIONS},
    "timing": {"what": {"work": "conv"}, "seconds": {"library": 0.5}},
}


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """A directory with plan, scores, weights, pruning record and a checkpoint of one network."""
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("pruned")
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.Conv2d(5, 2, 1))
    batches = [(torch.randn(2, 1, 8, 8), torch.randint(0, 2, (2, 4, 4)))]
    result = ranp.prune(model, batches, nn.functional.cross_entropy, sparsity=0.4, floor=1)
    result.save(out)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    save_checkpoint(out / "last.safetensors", model, optimizer, Progress(), {})
    for kind, content in STORED.items():
        write_sealed_json(out / f"{kind}.json", {"kind": kind, "schema": 1, **content})
    return out, model


def wrong_values(value):
    """What is no value for a field that holds this one; None may stand for what is not there."""
    yield from ([1], "text") if isinstance(value, dict) else ({"a": 1}, [{}])
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield from (-1, "1")


def refused(read, field):
    with pytest.raises(IntegrityError) as error:
        read()
    assert f"'{field}" in str(error.value) and "\n" not in str(error.value)
    assert error.value.exit_code == 4


OPTIONAL = {"best_epoch", "seed", "sparsity"}
NOT_IN_OLDER = {"blocks", "fit", "plan", "explorer", "measured", "timelines", "warnings"}


@pytest.mark.parametrize("kind", [*STORED, "plan", "pruning"])
def test_row_35_every_field_of_a_json_file_is_checked(kind, pruned, tmp_path):
    directory, _ = pruned
    path = tmp_path / f"{kind}.json"
    content = read_sealed_json(directory / path.name, kind)
    read = (lambda: Plan.load(path)) if kind == "plan" else (lambda: read_file(path, kind))
    write_sealed_json(path, content)
    read()  # the fields are valid
    unread = {"kind", "schema", "data", "protect", "not_counted", "quantiles"}
    if kind != "pruning":
        unread -= {"data", "protect"}
    tried = 0
    for field, value in content.items():
        if field in unread:
            continue
        for edit in (..., *wrong_values(value)):
            if (field, edit) == ("seed", -1) or (field in NOT_IN_OLDER and edit is ...):
                continue
            write_sealed_json(path, edited(content, [field], edit))
            refused(read, field)
            tried += 1
    for wrong in ({"kind": "other"}, {"schema": 2}):
        write_sealed_json(path, {**content, **wrong})
        with pytest.raises(IntegrityError, match=f"expected a {kind} of schema 1"):
            read()
    assert tried >= 4


PLAN_EDITS = {
    "neurons below the kept ones": (["layers", 0, "neurons"], 1, "layers.0"),
    "no neurons": (["layers", 0, "neurons"], 0, "layers.0.neurons"),
    "negative": (["layers", 0, "kept"], [-1], "layers.0.kept.0"),
    "doubled": (["layers", 0, "kept"], [0, 0], "layers.0"),
    "out of order": (["layers", 0, "kept"], [2, 1], "layers.0"),
    "out of range": (["layers", 0, "kept"], [6], "layers.0"),
    "emptied": (["layers", 0, "kept"], [], "layers.0.kept"),
    "a fraction": (["layers", 0, "kept"], [0.5], "layers.0.kept.0"),
    "a truth": (["layers", 0, "kept"], [True], "layers.0.kept.0"),
    "layer without a name": (["layers", 0, "name"], ..., "layers.0.name"),
    "layer doubled": (["layers", 1, "name"], "0", "layers"),
    "negative size": (["shapes", 0, 1], [-1, 2], "shapes.0.1.0"),
    "sparsity above 1": (["settings", "sparsity"], 1.5, "settings.sparsity"),
    "negative cost": (["costs", "full", "gflops"], -1.0, "costs.full.gflops"),
    "empty input": (["inputs", "args", 0, "tensor"], [0, 1], "inputs"),
    "no arguments": (["inputs", "args"], ..., "inputs.args"),
    "unknown precision": (["inputs", "args", 0, "dtype"], "os", "inputs"),
    "precision that torch has not": (["inputs", "args", 0, "dtype"], "float99", "inputs"),
    "method of two lines": (["method"], "ranp-f\nx", "method"),
    "seed beyond 64 bits": (["settings", "seed"], 2**70, "settings.seed"),
    "costs of some layers": (["settings", "resource"], {"0": 1.0}, "content': 'settings.resource"),
    "number as version": (["versions", "torch"], 2, "versions.torch"),
    "multiple of nothing": (["settings", "multiple"], None, "settings.multiple"),
    "unknown coupling": (["settings", "coupling"], "other", "settings.coupling"),
    "floor of nothing": (["settings", "floor"], None, "settings.floor"),
    "network without a name": (["network"], "", "network"),
    "parameter without a name": (["shapes", 0, 0], "", "shapes.0.0"),
    "more than can be counted": (["costs", "slim", "param_mb"], 1e308, "costs.slim.param_mb"),
    "slim costs more than full": (["costs", "slim", "gflops"], 1e6, "costs': 'slim.gflops"),
    "neurons that layers have not": (["costs", "slim", "neurons"], 1, "content': 'costs"),
    "parameters that are not there": (
        ["costs", "full", "param_mb"],
        1e3,
        "content': 'costs.full.param_mb",
    ),
}


@pytest.mark.parametrize("name", PLAN_EDITS)
def test_row_35_ranges_of_a_plan(name, pruned, tmp_path):
    directory, _ = pruned
    path, value, field = PLAN_EDITS[name]
    content = read_sealed_json(directory / "plan.json", "plan")
    write_sealed_json(tmp_path / "plan.json", edited(content, path, value))
    refused(lambda: Plan.load(tmp_path / "plan.json"), field)


PLAN_OF_ANOTHER = {
    "a parameter renamed": (["shapes", 0, 0], "other.weight", "other.weight"),
    "a parameter larger": (["shapes", 0, 1], [6, 2, 3, 3], "0.weight"),
    "a layer renamed": (["layers", 0, "name"], "other", "other"),
}


@pytest.mark.parametrize("name", PLAN_OF_ANOTHER)
def test_row_35_a_plan_that_is_valid_for_another_network_is_not_applied(name, pruned, tmp_path):
    directory, model = pruned
    path, value, field = PLAN_OF_ANOTHER[name]
    content = read_sealed_json(directory / "plan.json", "plan")
    write_sealed_json(tmp_path / "plan.json", edited(content, path, value))
    refused(lambda: Plan.load(tmp_path / "plan.json").apply(model), field)


RUN_EDITS = {
    "no cases": ("data", ["train"], [], "train"),
    "a case twice": ("data", ["train"], ["a", "a"], "train"),
    "a region of no label": ("data", ["regions"], {"all": []}, "regions.all"),
    "slim above full": ("record", ["slim", "gflops"], 9.0, "content': 'slim.gflops"),
    "no time at all": ("timing", ["seconds"], {}, "seconds"),
    "no time": ("timing", ["seconds", "library"], 0.0, "seconds.library"),
    "nothing predicted": ("memory-correction", ["factors", "32"], 0.0, "factors.32"),
    "unknown precision": ("memory-correction", ["factors"], {"8": 1.5}, "factors.8"),
    "a day that is none": ("memory-correction", ["date"], "today", "date"),
}


@pytest.mark.parametrize("name", RUN_EDITS)
def test_row_35_ranges_of_other_files(name, tmp_path):
    kind, path, value, field = RUN_EDITS[name]
    stored = {
        **STORED,
        "memory-correction": {"device": "cpu", "date": "2026-11-17", "factors": {"32": 1.02}},
    }
    content = {"kind": kind, "schema": 1, **stored[kind]}
    write_sealed_json(tmp_path / "good.json", content)
    assert read_file(tmp_path / "good.json", kind) == content
    write_sealed_json(tmp_path / "bad.json", edited(content, path, value))
    refused(lambda: read_file(tmp_path / "bad.json", kind), field)


CHOSEN = {
    "costs": {**COSTS, "neurons": 7},
    "full": COSTS,
    "sparsity": 0.4,
    "layers": ["a", "b"],
    "neurons": [8, 4],
    "kept": [4, 3],
}
CURVE = {
    "outcome": "trained",
    "curve": [{"dice": 0.25, "loss": 1.5}, {"dice": 0.5, "loss": 1.0}],
    "goal": "dice",
    "accuracy": 0.5,
    "seconds": 1.0,
    "cpu_seconds": 1.0,
    "device": "cpu",
}
CELL_EDITS = {
    "a layer gone": ("choice", CHOSEN, ["layers", 0], ..., "neurons"),
    "kept above all": ("choice", CHOSEN, ["kept"], [9, 3], "kept"),
    "kept as in no costs": ("choice", CHOSEN, ["kept"], [4, 4], "costs.neurons"),
    "slim above full": ("choice", CHOSEN, ["costs", "gflops"], 2.0, "costs.gflops"),
    "costs nothing": ("transfer", CHOSEN, ["costs", "param_mb"], 0.0, "costs.param_mb"),
    "no costs": ("transfer", CHOSEN, ["full"], None, "full"),
    "negative": ("scores", {"batches": 2}, ["batches"], -1, "batches"),
    "no batches": ("loop scores", {"batches": 2}, ["batches"], ..., "batches"),
    "elsewhere": ("generated data", {"directory": "x"}, ["directory"], "../../x", "directory"),
    "a row gone": (
        "importance",
        {"layers": ["a"], "importance": [[1.0]]},
        ["importance"],
        [],
        "imp",
    ),
    "no curve": ("loop", CURVE, ["curve"], [], "goal"),
    "another accuracy": ("loop", CURVE, ["accuracy"], 0.25, "accuracy"),
    "trained on": ("loop", CURVE, ["curve"], [*CURVE["curve"], {"dice": 0.5}], "curve"),
}


@pytest.mark.parametrize("name", CELL_EDITS)
def test_row_35_results_of_cells(name, tmp_path):
    kind, result, path, value, field = CELL_EDITS[name]
    store, cell = Store(tmp_path), {"kind": kind, "check_ins": 2}
    store.complete([cell], lambda cell, place: result)
    assert store.result(cell) == result
    record = store.place(cell) / "record.json"
    content = read_sealed_json(record, "record")
    write_sealed_json(record, edited(content, ["result", *path], value))
    with pytest.raises(IntegrityError, match="field 'result") as error:
        store.result(cell)
    assert field in str(error.value) and error.value.exit_code == 4


@pytest.mark.parametrize("epochs", [[2], [1, 1], [1, 3]])
def test_row_35_epochs_count_up(epochs, tmp_path):
    lines = seal_epochs([{"epoch": epoch, "loss": 0.5} for epoch in epochs], None)
    write_text(tmp_path / "metrics.jsonl", "".join(f"{line}\n" for line in lines))
    refused(lambda: read_epochs(tmp_path), "epoch")


METHOD = ["explorer", "methods", "ranp-f"]
RECORD_EDITS = {
    "no layers": (["layers"], [], "layers"),
    "negative neurons": (["layers", 0, "neurons"], -1, "layers.0.neurons"),
    "more kept than there are": (["layers", 0, "kept"], 99, "layers.0"),
    "no rows": (["layers", 0, "rows"], None, "layers.0.rows"),
    "row out of range": (["layers", 0, "rows"], [99], "content': 'layers.0.rows"),
    "number as kind": (["rows", 0, "kind"], 1, "rows.0.kind"),
    "a truth": (["rows", 0, "activations", 0], True, "rows.0.activations.0"),
    "one of two": (["rows", 0, "flops", 1], ..., "rows.0.flops"),
    "no line": (["timelines", "full"], None, "timelines.full"),
    "empty line": (["timelines", "slim", "bytes"], [], "timelines.slim.bytes"),
    "negative bytes": (["timelines", "slim", "bytes", 1], -1, "timelines.slim.bytes.1"),
    "no peak": (["timelines", "slim", "peak"], {}, "timelines.slim.peak"),
    "whose peak": (["timelines", "slim", "peak"], ..., "timelines.slim"),
    "unknown phase": (["timelines", "slim", "phase"], "x", "timelines.slim.phase"),
    "text as space": (["topology", "space"], "x", "topology.space"),
    "space of a layer gone": (["topology", "space", 0], ..., "content': 'topology.space"),
    "feeds nobody": (["topology", "feeds", 0], [0, 99], "content': 'topology.feeds"),
    "number as adds": (["topology", "adds"], -1, "topology.adds"),
    "sparsity above 1": (["explorer", "sparsities", 1], 7, "explorer.sparsities.1"),
    "largest sparsity": ([*METHOD, "max_sparsity"], -7.5, "explorer.methods.ranp-f.max_sparsity"),
    "not packed": ([*METHOD, "kept"], -7.5, "explorer.methods.ranp-f.kept"),
    "other numbers": ([*METHOD, "kept", "dtype"], "f8", "explorer.methods.ranp-f.kept.dtype"),
    "no base64": ([*METHOD, "flops", "base64"], "?", "explorer.methods.ranp-f.flops.base64"),
    "no text": ([*METHOD, "flops", "base64"], None, "explorer.methods.ranp-f.flops.base64"),
    "total gone": ([*METHOD, "totals", 0], ..., "explorer': 'methods.ranp-f.totals"),
    "text as total": ([*METHOD, "totals", 0, 2], "x", "explorer.methods.ranp-f.totals.0.2"),
    "threshold gone": ([*METHOD, "thresholds", 0], ..., "explorer': 'methods.ranp-f.thresholds"),
    "text as quantile": ([*METHOD, "quantiles", 1, 1], "x", "explorer.methods.ranp-f.quantiles"),
    "negative lambda": (["settings", "lambda"], -7.5, "settings.lambda"),
    "text as multiple": (["settings", "multiple"], "x", "settings.multiple"),
    "no inputs": (["inputs", "args", 0], ..., "inputs"),
    "row of another name": (["rows", 0, "name"], "other", "content': 'layers.0' must have name"),
    "a row twice": (["layers", 0, "rows"], [0, 0], "content': 'layers' must have each"),
    "fixed and not kept": (["layers", 0, "fixed"], 6, "layers.0': 'kept"),
    "no space": (["topology", "space", 0], [0, 8], "topology.space.0"),
    "a peak that is none": (["timelines", "slim", "peak"], 2**50, "timelines.slim': 'peak"),
    "backward after the end": (["timelines", "slim", "backward"], 10**6, "timelines.slim': 'back"),
    "a file elsewhere": (["files"], {"../x": HASH}, "files.../x"),
    "measured of another network": (["measured"], {"other": {}}, "measured.other"),
    "text as measured": (["measured"], {"full": {"seconds": "1"}}, "measured.full.seconds"),
    "a row that grows": (["rows", 0, "flops", 1], 10**9, "rows.0.flops"),
    "a total that is no sum": (["totals", "full", "gflops"], 7.5, "content': 'totals.full.gflops"),
    "slim above full": (["totals", "slim", "memory_mb"], 1e6, "totals': 'slim.memory_mb"),
    "kept as in no row": (["layers", 0, "kept"], 1, "content': 'layers.0' must have name"),
}


def test_a_record_with_measured_steps_is_read_as_it_was_written(pruned, tmp_path):
    step = Measured(seconds=0.5, spread=0.1, times=(0.4, 0.6), peak_bytes=100)
    directory, _ = pruned
    content = read_sealed_json(directory / "pruning.json", "pruning")
    content["measured"] = {"full": asdict(step), "slim": asdict(step)}
    write_sealed_json(tmp_path / "pruning.json", content)
    found = read_file(tmp_path / "pruning.json", "pruning")["measured"]["slim"]
    assert found == {"seconds": 0.5, "spread": 0.1, "times": [0.4, 0.6], "peak_bytes": 100}


@pytest.mark.parametrize("name", RECORD_EDITS)
def test_row_35_tables_of_a_pruning_record(name, pruned, tmp_path):
    directory, _ = pruned
    path, value, field = RECORD_EDITS[name]
    content = read_sealed_json(directory / "pruning.json", "pruning")
    write_sealed_json(tmp_path / "pruning.json", edited(content, path, value))
    refused(lambda: read_file(tmp_path / "pruning.json", "pruning"), field)


SCORES_EDITS = {
    "negative": (["batches"], -1, "batches"),
    "missing": (["fan_in"], ..., "fan_in"),
    "doubled": (["fan_in"], [["0", 9], ["0", 9]], "fan_in"),
    "no hash": (["fingerprint"], "abc", "fingerprint"),
    "text": (["settings"], "text", "settings"),
    "layer that is not there": (["fan_in", 0, 0], "other", "constants/magnitude/0"),
}


def test_row_35_scores_of_other_weights_are_not_ranked(pruned, tmp_path):
    directory, model = pruned
    path = tmp_path / "scores.safetensors"
    tensors, metadata = load_tensors(directory / "scores.safetensors", "scores")
    about = json.loads(metadata["ranp"])
    cut = {key: value[:-1] if key.endswith("/0") else value for key, value in tensors.items()}
    doubled = edited(about, ["fan_in", 0, 1], 18)  # 1 x 3 x 3 weights
    for held, said in ((tensors, doubled), (cut, about)):
        save_tensors(path, held, {"ranp": json.dumps(said)})
        with pytest.raises(IntegrityError, match="'0' has 6 neurons of 9 weights"):
            ranp.plan(model, sparsity=0.4, scores=Scores.load(path), example_input=(1, 1, 8, 8))
    save_tensors(path, tensors, metadata)
    ranp.plan(model, sparsity=0.4, floor=1, scores=Scores.load(path), example_input=(1, 1, 8, 8))


@pytest.mark.parametrize("name", SCORES_EDITS)
def test_row_35_fields_of_scores(name, pruned, tmp_path):
    directory, _ = pruned
    path, value, field = SCORES_EDITS[name]
    tensors, metadata = load_tensors(directory / "scores.safetensors", "scores")
    about = edited(json.loads(metadata["ranp"]), path, value)
    save_tensors(tmp_path / "scores.safetensors", tensors, {"ranp": json.dumps(about)})
    with pytest.raises(IntegrityError) as error:
        Scores.load(tmp_path / "scores.safetensors")
    assert field.split("/")[0] in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_row_35_scores_are_finite(value, pruned, tmp_path):
    directory, _ = pruned
    tensors, metadata = load_tensors(directory / "scores.safetensors", "scores")
    key = next(iter(tensors))
    tensors[key] = torch.full_like(tensors[key], value)
    save_tensors(tmp_path / "scores.safetensors", tensors, metadata)
    refused(lambda: Scores.load(tmp_path / "scores.safetensors"), key)


@pytest.mark.parametrize("metadata", [{}, {"ranp": "["}, {"ranp": "[]"}, {"ranp": "{}"}])
def test_row_35_foreign_metadata(metadata, pruned, tmp_path):
    path = tmp_path / "scores.safetensors"
    save_tensors(path, {"a": torch.zeros(1)}, metadata)
    with pytest.raises(IntegrityError, match=r"holds no scores|schema None"):
        Scores.load(path)


PROGRESS_EDITS = {
    "ahead of its history": (["progress", "epoch"], 7),
    "best that is to come": (["progress", "best_epoch"], 1),
    "epoch 0": (["progress", "epoch"], 0),
    "negative batch": (["progress", "batch"], -1),
    "text": (["progress", "loss"], "low"),
    "negative time": (["progress", "seconds"], -1.0),
    "no history": (["progress", "history"], ...),
    "no scaler": (["scaler"], ...),
    "other schema": (["schema"], 2),
}


@pytest.mark.parametrize("name", PROGRESS_EDITS)
def test_row_35_fields_of_a_checkpoint(name, pruned, tmp_path):
    directory, model = pruned
    path, value = PROGRESS_EDITS[name]
    tensors, metadata = load_tensors(directory / "last.safetensors", "checkpoint")
    state = json.dumps(edited(json.loads(metadata["state"]), path, value))
    save_tensors(tmp_path / "last.safetensors", tensors, {**metadata, "state": state})
    with pytest.raises(IntegrityError, match=path[-1]):
        load_checkpoint(tmp_path / "last.safetensors", model)


@pytest.mark.parametrize("name", ["optimizer/99/x", "optimizer/a/x", "optimizer/0/step"])
def test_row_35_states_of_no_parameter(name, pruned, tmp_path):
    directory, model = pruned
    tensors, metadata = load_tensors(directory / "last.safetensors", "checkpoint")
    save_tensors(tmp_path / "last.safetensors", {**tensors, name: torch.zeros(7)}, metadata)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    refused(lambda: load_checkpoint(tmp_path / "last.safetensors", model, optimizer), name)


def test_row_35_weights_are_not_taken_from_a_file_of_another_kind(pruned, tmp_path):
    _, model = pruned
    save_tensors(tmp_path / "x.safetensors", model.state_dict(), {"kind": "checkpoint"})
    refused(lambda: load_weights(model, tmp_path / "x.safetensors"), "kind")
    save_weights(model, tmp_path / "x.safetensors")
    load_weights(model, tmp_path / "x.safetensors")
