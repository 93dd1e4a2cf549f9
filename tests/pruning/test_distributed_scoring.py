"""Several processes score like one: uneven shares, none at all, the same bits everywhere."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ranp.pruning import Choice, Chooser, Scores, StabilityStop
from ranp.pruning.distributed import own_batches
from tests.fresh import run_fresh
from tests.pruning.nets import classifier, cross_entropy, pictures, score, serving, traced

STATISTICS = ("abs", "signed", "grasp")
PLACE = "ranp.pruning.distributed.rank_and_world_size"
ROOT = Path(__file__).parents[2]


def run(batches: int) -> tuple[Scores, dict[str, list[bool]]]:
    model = classifier()
    graph = traced(model, 1, 2, 8, 8)
    scores = score(model, graph, pictures(batches), cross_entropy, methods=serving(*STATISTICS))
    alive = {
        name: Chooser(model, graph, Choice.make(name), scores).choose(0.5).tolist()
        for name in ("ranp-f", "mnmg-sum", "mpmg-max", "snip", "grasp", "magnitude")
    }
    return scores, alive


def digest(scores: Scores) -> str:
    result = hashlib.sha256(str(scores.batches).encode())
    for group in (scores.sums, scores.weight_sums, scores.constants):
        for by_layer in group.values():
            for tensor in by_layer.values():
                result.update(tensor.numpy().tobytes())
    return result.hexdigest()


def process(rank: int, store: str, out: str, counts: list[int]) -> None:
    """What one of two processes does, for each number of batches."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    found = {}
    for batches in counts:
        scores, alive = run(batches)
        found[str(batches)] = {"alive": alive, "digest": digest(scores)}
        if rank == 0:
            scores.save(f"{out}-{batches}.safetensors")
    data = TensorDataset(torch.arange(7))
    loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data, shuffle=False))
    found["sharded"] = [[n, int(b[0])] for n, b in own_batches(loader, 0, 5)]
    for size in (1, 3):
        loader = DataLoader(data, batch_size=size, sampler=DistributedSampler(data, shuffle=False))
        found[f"by {size}"] = [b[0].tolist() for _, b in own_batches(loader, 0, None)]
    settled = StabilityStop(lambda scores: np.ones(4, bool), at_most=1)
    settled.reached, settled.needed = (0.9, 40) if rank else (0.8, 30)
    found["settled"] = settled.annotate(scores).settings
    Path(f"{out}-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Even shares, uneven ones, and a process without batches."""
    folder = tmp_path_factory.mktemp("distributed")
    call = "from tests.pruning.test_distributed_scoring import process; process"
    programs = [f"{call}({r}, '{folder}/store', '{folder}/out', [4, 5, 1])" for r in range(2)]
    with ThreadPoolExecutor() as threads:
        for done in threads.map(lambda program: run_fresh(program, cwd=ROOT), programs):
            assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.parametrize("batches", [4, 5, 1])
def test_two_processes_score_like_one(two_processes, batches):
    expected, alive = run(batches)
    ranks = [json.loads((two_processes / f"out-{r}.json").read_text()) for r in range(2)]
    first, second = (rank[str(batches)] for rank in ranks)
    assert first["digest"] == second["digest"]
    assert first["alive"] == second["alive"] == alive
    found = Scores.load(two_processes / f"out-{batches}.safetensors")
    assert found.batches == batches
    for group in ("sums", "weight_sums", "constants"):
        for statistic, by_layer in getattr(expected, group).items():
            for name, values in by_layer.items():
                other = getattr(found, group)[statistic][name]
                scale = values.abs().max().clamp_min(1e-300)
                assert float((values - other).abs().max() / scale) < 1e-6, (statistic, name)


def test_a_loader_with_a_distributed_sampler_is_not_split_again(two_processes):
    ranks = [json.loads((two_processes / f"out-{r}.json").read_text()) for r in range(2)]
    assert ranks[0]["sharded"] == [[0, 0], [2, 2], [4, 4]]
    assert ranks[1]["sharded"] == [[1, 1], [3, 3]]


def test_samples_that_a_sampler_repeats_do_not_count_twice(two_processes):
    ranks = [json.loads((two_processes / f"out-{r}.json").read_text()) for r in range(2)]
    # The sampler gives four each: 0 2 4 6, and 1 3 5 and then 0 again.
    assert [rank["by 1"] for rank in ranks] == [[[0], [2], [4], [6]], [[1], [3], [5]]]
    assert [rank["by 3"] for rank in ranks] == [[[0, 2, 4], [6]], [[1, 3, 5]]]


def test_all_processes_note_the_least_settled_choice(two_processes):
    ranks = [json.loads((two_processes / f"out-{r}.json").read_text()) for r in range(2)]
    assert ranks[0]["settled"] == ranks[1]["settled"]
    assert ranks[0]["settled"]["agreement"] == 0.8
    assert ranks[0]["settled"]["batches_needed"] == 40


def test_batches_are_shared_out_without_padding(monkeypatch):
    monkeypatch.setattr(PLACE, lambda: (1, 3))
    assert list(own_batches("abcdefgh", 0, None)) == [(1, "b"), (4, "e"), (7, "h")]
    assert list(own_batches("abcdefgh", 2, 7)) == [(4, "e")]
    assert list(own_batches("a", 0, None)) == []
    everything = []
    for rank in range(3):
        monkeypatch.setattr(PLACE, lambda rank=rank: (rank, 3))
        everything += own_batches("abcdefgh", 0, None)
    assert sorted(everything) == list(enumerate("abcdefgh"))
    assert np.unique([number for number, _ in everything]).size == 8
