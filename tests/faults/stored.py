"""Every kind of file that is read again, as it is written, and what reads it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ranp
from ranp.datasets import synthesise
from ranp.errors import IntegrityError, UsageError
from ranp.files import (
    json_sha256,
    load_tensors,
    read_sealed_json,
    save_tensors,
    write_sealed_json,
    write_text,
)
from ranp.integrations.nnunet.plans import FACTORY, read_slim_plans
from ranp.integrations.nnunet.summary import slim_plans_summary
from ranp.pruning import Scores
from ranp.report.page import write_report
from ranp.resources.memory_correction import MemoryCorrection, save_correction
from ranp.resources.timing_cache import TimingCache
from ranp.schemas import read_epochs, read_file, run_id, seal_epochs
from ranp.slimming import Plan, load_weights, mark
from ranp.training.checkpoint import load_checkpoint
from ranp.training.config import load_config
from ranp.training.inference import predict
from ranp.training.job import Job, read_job
from ranp.training.listing import list_runs
from ranp.training.networks import build_network
from ranp.training.run import train
from ranp.trials.store import Store
from tests.training.conftest import TINY

CELL = {"kind": "training", "seed": 1, "budget": {"resource": "gflops", "amount": 1.0}}


@dataclass(frozen=True)
class StoredFile:
    """A file.

    Attributes:
        path: Where it is.
        parse: Returns what it holds, as JSON values.
        seal: Writes such values back, with a good seal.
        use: Does with it what commands do; whatever it returns is all that was read.
    """

    path: Path
    parse: Callable[[Path], Any]
    seal: Callable[[Path, Any], None]
    use: Callable[[Path], Any]


def network() -> nn.Module:
    """A network of three layers, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Conv2d(5, 2, 1)
    )


def edited(content: Any, path: Sequence[Any], value: Any = ...) -> Any:
    """Return a copy of nested containers with one entry replaced, or left out."""
    content = copy.deepcopy(content)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return content


def write_files(directory: Path) -> dict[str, StoredFile]:
    """Write a file of every kind below a directory, by the public way of making it."""
    return dict([*_pruning_files(directory), *_run_files(directory), *_other_files(directory)])


def _json(path: Path, use: Callable[[Path], Any]) -> StoredFile:
    return StoredFile(path, lambda p: read_sealed_json(p, p.stem), write_sealed_json, use)


def _tensors(path: Path, entry: str, use: Callable[[Path], Any]) -> StoredFile:
    """A safetensors file; its values are those of its metadata, an entry of which is JSON."""

    def parse(path: Path) -> Any:
        metadata = dict(load_tensors(path, "tensors")[1])
        return {**metadata, entry: json.loads(metadata[entry])} if entry else metadata

    def seal(path: Path, content: Any) -> None:
        tensors, _ = load_tensors(path, "tensors")
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in content.items()}
        save_tensors(path, tensors, texts)

    return StoredFile(path, parse, seal, use)


def _pruning_files(directory: Path) -> Iterator[tuple[str, StoredFile]]:
    pruned, fitted = directory / "pruned", directory / "fitted"
    batches = [(torch.randn(2, 1, 8, 8), torch.randint(0, 2, (2, 4, 4)))]
    result = ranp.prune(
        network(), batches, nn.functional.cross_entropy, sparsity=0.4, floor=1, protect=["4"]
    )
    result.save(pruned)
    loss = nn.functional.cross_entropy
    ranp.fit(network(), batches, loss, memory="90%", floor=1).save(fitted)
    (fitted / "plan.json").unlink()  # the record is read by itself

    def use_plan(path: Path) -> Any:
        plan = Plan.load(path)
        plan.apply(network())
        return repr(plan), plan.summary(), plan.to_dict()

    def use_record(path: Path) -> Any:
        read = read_file(path, "pruning")
        write_report(path.parent)
        return read

    def use_scores(path: Path) -> Any:
        read = Scores.load(path)
        sums = {name: values.tolist() for name, values in read.average("mpmg").items()}
        return repr(read), sums

    def use_weights(path: Path) -> Any:
        slim = result.plan.apply(network())
        load_weights(slim, path)
        return [tensor.tolist() for tensor in slim.state_dict().values()]

    yield "plan", _json(pruned / "plan.json", use_plan)
    yield "pruning record", _json(pruned / "pruning.json", lambda path: read_file(path, "pruning"))
    yield "fit's record", _json(fitted / "pruning.json", use_record)
    yield "scores", _tensors(pruned / "scores.safetensors", "ranp", use_scores)
    yield "weights", _tensors(pruned / "weights.safetensors", "", use_weights)


def _run_files(directory: Path) -> Iterator[tuple[str, StoredFile]]:
    data, run = directory / "crops", directory / "runs" / "run"
    synthesise("hippocampus", data, cases=4, size=24, seed=0)
    config = load_config("hippocampus-unet3d", smoke=True, changes=TINY)
    train(Job(config, run, data))
    source = next(data.rglob("*.nii.gz"))

    def use_run(path: Path) -> Any:
        (summary,) = list_runs(path.parent.parent)
        if summary["state"].startswith("damaged"):
            raise IntegrityError(summary["state"])
        return read_job(path.parent).config, summary

    def use_record(path: Path) -> Any:
        summary = use_run(path)
        write_report(path.parent)
        return summary, read_file(path, "record")

    def use_data(path: Path) -> Any:
        predict(path.parent, source, path.parent / "out.nii.gz")
        return read_file(path, "data")

    def use_checkpoint(path: Path) -> Any:
        model = build_network(config.network)
        mark(model, run=run_id(path.parent))
        optimizer = torch.optim.AdamW(model.parameters())
        progress, scaler = load_checkpoint(path, model, optimizer)
        return progress, scaler, [value.tolist() for value in model.state_dict().values()]

    def parse_lines(path: Path) -> Any:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [{k: line[k] for k in line if k != "seal"} for line in lines]

    def seal_lines(path: Path, content: Any) -> None:
        lines: list[str] = []
        for line in content:
            if isinstance(line, dict) and "run" in line:
                epoch = {name: value for name, value in line.items() if name != "run"}
                lines += seal_epochs([epoch], line["run"], lines[-1] if lines else "")
            else:
                lines.append(json.dumps(line))  # there is no way to seal it
        write_text(path, "".join(f"{line}\n" for line in lines))

    yield "configuration", _json(run / "config.json", use_run)
    yield "data", _json(run / "data.json", use_data)
    yield "training record", _json(run / "record.json", use_record)
    yield "checkpoint", _tensors(run / "last.safetensors", "state", use_checkpoint)
    use_lines = StoredFile(
        run / "metrics.jsonl", parse_lines, seal_lines, lambda path: read_epochs(path.parent)
    )
    yield "metrics", use_lines


def _other_files(directory: Path) -> Iterator[tuple[str, StoredFile]]:
    store = Store(directory / "store", code="0123")
    averaged = {"mean": 0.5, "std": 0.1, "last": 0.5}
    full = {"gflops": 1.5, "param_mb": 0.5, "memory_mb": 2.0, "neurons": 12}
    slim = {"gflops": 0.75, "param_mb": 0.25, "memory_mb": 1.0, "neurons": 6}
    result = {
        **slim,
        "outcome": "trained",
        "accuracy": 0.5,
        "goal": "dice",
        "metrics": {"dice": averaged},
        "seconds": 2.5,
        "cpu_seconds": 2.25,
        "device": "cpu",
        "full": full,
        "deviation": -0.25,
        "sparsity": 0.5,
    }
    store.complete([CELL], lambda cell, place: result)
    yield "cell", _json(store.place(CELL) / "record.json", lambda path: store.record(CELL))
    cache, work = TimingCache(directory / "cache"), {"work": "conv"}
    cache.get(work, lambda: {"library": 0.5})
    timing = next((directory / "cache").rglob("*.json"))

    def use_timing(path: Path) -> Any:
        def measure() -> dict[str, float]:
            raise IntegrityError("'what' was measured is something else")

        read_file(path, "timing")  # what is not valid is removed, and measured again
        return cache.get(work, measure)

    yield "timing", _json(timing, use_timing)
    correction = save_correction(MemoryCorrection("cpu", "2026-11-17", {"32": 1.02}), "cpu")
    yield "correction", _json(correction, lambda path: read_file(path, "memory-correction"))
    yield "nnU-Net's plans", _nnunet_plans(directory)


def _nnunet_plans(directory: Path) -> StoredFile:
    path = directory / "nnUNetPlans_ranp.json"

    def use(path: Path) -> Any:
        try:
            read = read_slim_plans(path)
        except UsageError as error:  # the file is nnU-Net's, and nothing of ours is left in it
            raise IntegrityError(str(error)) from error
        slim_plans_summary(read)
        return read

    def parse(path: Path) -> Any:
        entry = json.loads(path.read_text())["configurations"]["3d_fullres"]["architecture"]
        return {k: v for k, v in entry["arch_kwargs"]["ranp"].items() if k != "sha256"}

    def seal(path: Path, content: Any) -> None:
        sealed = {**content, "sha256": json_sha256(content)}
        architecture = {"network_class_name": FACTORY, "arch_kwargs": {"ranp": sealed}}
        plans = {
            "dataset_name": "Dataset007_Cells",
            "plans_name": path.stem,
            "configurations": {"3d_fullres": {"architecture": architecture}},
        }
        write_text(path, json.dumps(plans))

    plan = Plan.load(directory / "pruned" / "plan.json")
    seal(
        path,
        {
            "network_class_name": "torch.nn.Sequential",
            "plan": plan.to_dict(),
            "source": "nnUNetPlans",
            "command": "ranp nnunet prune 7 3d_fullres --flops 10%",
            "training": {"batch": 2, "input": [1, 8, 8], "precision": "16", "device": "cuda"},
            "memory": {"full": 2**33, "slim": 2**31},
            "nnunet_estimate": {"full": 7.5, "slim": 2.25},
            "instead": {"patch_size": [4, 4, 4], "batch_size": 2, "estimate": 2.5},
        },
    )
    return StoredFile(path, parse, seal, use)
