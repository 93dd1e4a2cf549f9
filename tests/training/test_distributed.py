"""Two gloo processes against one with the same global batch.

Without batch norm the losses agree to rounding. With it they do not: each process normalises by
the statistics of its own half of the batch, as `DistributedDataParallel` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ranp.datasets import find_dataset, open_cases
from ranp.datasets.loader import Shard
from ranp.training.job import Job
from ranp.training.loop import evaluate
from ranp.training.networks import build_network
from ranp.training.preparation import fresh_network
from ranp.training.run import make_fabric, train, validation_loader
from tests.training.networks import Plain
from tests.training.two_processes import Losses, make_config

ROOT = Path(__file__).parents[2]


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.training.two_processes", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_give_the_losses_and_metrics_of_one(tmp_path, crops):
    process = start(2, crops, tmp_path / "two", tmp_path / "two.json", "plain")
    one = Losses()
    record = train(
        Job(make_config(norm=False), tmp_path / "one", crops, factory=Plain), listener=one
    )
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    two = json.loads((tmp_path / "two.json").read_text())
    assert len(two["losses"]) == len(one.losses) == 2
    assert two["losses"] == pytest.approx(one.losses, abs=1e-5)
    mean = record["metrics"]["dice"]["mean"]
    assert two["metrics"]["dice"]["mean"] == pytest.approx(mean, abs=1e-3)
    record = json.loads((tmp_path / "two" / "record.json").read_text())
    assert record["processes"] == 2


def test_metrics_of_the_same_weights_do_not_depend_on_the_shares(crops):
    config = make_config(norm=True)
    full = build_network(config.network)
    network = fresh_network(full, None, transfer=False, seed=0)
    cases = open_cases("hippocampus", crops, "train", size=24)
    fabric = make_fabric(config)
    whole = evaluate(
        fabric, network, find_dataset("hippocampus").make_task(24), validation_loader(cases, config)
    )

    task = find_dataset("hippocampus").make_task(24)
    shares = []
    for rank in range(3):
        loader = validation_loader(cases, config, Shard(rank, 3))
        with torch.no_grad():
            shares.append([m for b in loader for m in task.measure(network(b["x"]), b)])
    joined = [shares[i % 3][i // 3] for i in range(len(cases))]
    assert task.summarise(joined) == whole


@pytest.mark.slow
def test_batch_norm_makes_two_processes_differ_and_metrics_stay_sane(tmp_path, crops):
    process = start(2, crops, tmp_path / "two", tmp_path / "two.json", "norm")
    one = Losses()
    train(Job(make_config(norm=True), tmp_path / "one", crops), listener=one)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    two = json.loads((tmp_path / "two.json").read_text())["losses"]
    assert two != pytest.approx(one.losses, abs=1e-5)
    assert two == pytest.approx(one.losses, rel=0.2)


@pytest.mark.slow
def test_when_a_process_dies_all_end(tmp_path, crops):
    process = start(2, crops, tmp_path / "two", tmp_path / "two.json", "norm")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (tmp_path / "two" / "last.safetensors").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    child = int(children.read_text().split()[0])
    os.kill(child, 9)
    process.communicate(timeout=30)
    assert process.returncode != 0
