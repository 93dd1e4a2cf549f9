"""What happens when memory runs out: the same scores, in smaller steps."""

from __future__ import annotations

import textwrap

import pytest
import torch
from torch import nn

from ranp.errors import UsageError
from ranp.pruning.batches import batch_size, split_into_parts
from ranp.recompute import blocks, checkpointed
from tests.fresh import run_fresh
from tests.pruning.nets import (
    classifier,
    cross_entropy,
    given_back,
    pictures,
    score,
    serving,
    traced,
)

# What PyTorch's CPU allocator says.
CPU_ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
)
STATISTICS = ("abs", "signed", "grasp")


def short_of_memory(limit, error=RuntimeError):
    """A forward that fails above a number of samples; without checkpointing, if that is 0."""

    def forward(model, batch):
        recomputing = any("forward" in vars(module) for module in model.modules())
        if batch[0].shape[0] > max(limit, 1) or (limit == 0 and not recomputing):
            raise error(CPU_ALLOCATOR)
        return cross_entropy(model, batch)

    return forward


def run(model, forward, batches=3, size=6, **options):
    graph = traced(model, 1, 2, 8, 8)
    options.setdefault("methods", serving(*STATISTICS))
    return score(model, graph, pictures(batches, size), forward, weights="given", **options)


def assert_same(a, b, tolerance=1e-10):
    assert a.batches == b.batches
    for one, other in ((a.sums, b.sums), (a.weight_sums, b.weight_sums)):
        assert one.keys() == other.keys()
        for statistic, by_layer in one.items():
            for name, values in by_layer.items():
                torch.testing.assert_close(
                    values, other[statistic][name], rtol=tolerance, atol=1e-13,
                    msg=lambda text, s=statistic, n=name: f"{s} of {n}: {text}",
                )  # fmt: skip


@pytest.mark.parametrize(("limit", "parts"), [(3, "2"), (2, "4"), (1, "6")])
@pytest.mark.parametrize("error", [RuntimeError, MemoryError, torch.OutOfMemoryError])
def test_smaller_parts_give_the_same_scores(limit, parts, error):
    model = classifier()
    whole = run(model, cross_entropy)
    with given_back(model), pytest.warns(UserWarning, match="out of memory") as record:
        found = run(model, short_of_memory(limit, error))
    assert_same(found, whole)
    assert f"batches in {parts} parts" in str(record[-1].message)
    assert len(record) == {"2": 1, "4": 2, "6": 3}[parts]  # later batches start with small parts


def test_checkpointing_comes_last_and_gives_the_same_scores():
    model = classifier()
    whole = run(model, cross_entropy)
    with given_back(model), pytest.warns(UserWarning, match="out of memory") as record:
        found = run(model, short_of_memory(0))
    assert "activation checkpointing" in str(record[-1].message)
    assert_same(found, whole)


def test_computed_weights_survive_parts_and_checkpointing():
    torch.manual_seed(0)
    norm = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(
        norm(nn.Conv2d(2, 6, 3)), nn.ReLU(), norm(nn.Conv2d(6, 5, 3)), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
    ).double()  # fmt: skip
    whole = run(model, cross_entropy, methods=serving("abs", "signed"))
    for limit in (2, 0):
        with pytest.warns(UserWarning, match="out of memory"):
            found = run(model, short_of_memory(limit), methods=serving("abs", "signed"))
        assert_same(found, whole)


class Sometimes(nn.Module):
    """A branch that not every batch takes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.branch = True
        self.a, self.b = nn.Conv2d(2, 4, 3), nn.Conv2d(2, 4, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = self.a(x) + self.b(x) if self.branch else self.a(x)
        return self.head(h.relu().mean((2, 3)))


def test_a_layer_that_the_last_part_does_not_reach_is_scored_all_the_same():
    model = Sometimes().double()
    graph = traced(model, 1, 2, 8, 8)
    x, y = pictures(1, 2)[0]

    def loss_of_samples(model, batch):
        """The mean over samples, of which the first one alone takes the branch."""
        losses = []
        for i in range(len(batch[1])):
            model.branch = torch.equal(batch[0][i], x[0])
            part = tuple(t[i : i + 1] for t in batch)
            losses.append(cross_entropy(model, part))
        return torch.stack(losses).mean()

    def short(model, batch):
        if len(batch[1]) > 1:
            raise RuntimeError(CPU_ALLOCATOR)
        return loss_of_samples(model, batch)

    options = {"weights": "given", "methods": serving("abs", "signed")}
    whole = score(model, graph, [(x, y)], loss_of_samples, **options)
    with pytest.warns(UserWarning, match="out of memory"):
        found = score(model, graph, [(x, y)], short, **options)
    assert whole.sums["mpmg"]["b"].min() > 0
    assert_same(found, whole)


def test_a_batch_norm_network_is_told_that_scores_change():
    with pytest.warns(UserWarning, match="batch norm sees the parts"):
        run(classifier(norm=True), short_of_memory(3))


def test_memory_that_never_suffices_is_an_error_with_a_way_out():
    def never(model, batch):
        raise RuntimeError(CPU_ALLOCATOR)

    with (
        pytest.warns(UserWarning, match="out of memory"),
        pytest.raises(UsageError, match="score at a smaller spatial size"),
    ):
        run(classifier(), never)


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    def wrong(model, batch):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        run(classifier(), wrong)


def test_batches_are_cut_wherever_samples_are():
    batch = {
        "x": torch.arange(10.0).view(5, 2),
        "y": torch.arange(5),
        "weight": torch.ones(3),
        "k": 7,
    }
    assert batch_size(batch) == 5
    pieces = split_into_parts(batch, 2)
    assert [share for _, share in pieces] == [0.6, 0.4]
    assert torch.equal(torch.cat([p["x"] for p, _ in pieces]), batch["x"])
    assert [p["y"].tolist() for p, _ in pieces] == [[0, 1, 2], [3, 4]]
    assert all(p["weight"] is batch["weight"] and p["k"] == 7 for p, _ in pieces)
    assert len(split_into_parts(batch, 99)) == 5
    assert split_into_parts(batch, 1) == [(batch, 1.0)]


def test_blocks_are_not_the_whole_model():
    inner = nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    assert blocks(nn.Sequential(inner)) == [inner[0], inner[2]]
    assert blocks(nn.Sequential(inner, nn.Conv2d(2, 2, 1)))[0] is inner
    listed = nn.ModuleList([nn.Conv2d(2, 2, 1), nn.ModuleList([nn.Conv2d(2, 3, 1)])])
    assert len(blocks(nn.ModuleDict({"a": listed}))) == 2


def test_checkpointing_keeps_less_and_computes_the_same():
    torch.manual_seed(0)
    stage = [
        nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()) for _ in range(4)
    ]
    model = nn.Sequential(*stage).double()
    x = torch.randn(16, 32).double()

    def run_once():
        kept: dict[int, int] = {}

        def pack(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = model(x).square().mean()
        held = sum(kept.values())
        return held, torch.autograd.grad(loss, list(model.parameters()))

    plain_bytes, plain = run_once()
    with checkpointed(model):
        frugal_bytes, frugal = run_once()
    assert frugal_bytes < plain_bytes / 2
    assert all(torch.equal(a, b) for a, b in zip(plain, frugal, strict=True))
    assert not any("forward" in vars(module) for module in model.modules())


def test_real_memory_limit(tmp_path):
    """Under RLIMIT_AS a batch of 64 does not fit, and parts of it do."""
    script = textwrap.dedent("""
        import resource, sys, warnings
        import torch
        from torch import nn
        import torch.nn.functional as F
        from ranp.graph import build_graph
        from ranp.pruning import Scoring, make_forward, score
        torch.set_num_threads(1)
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3),
        )
        data = [(torch.randn(64, 1, 64, 64), torch.randint(3, (64,)))]
        graph = build_graph(model, (1, 1, 64, 64))
        scoring = Scoring(make_forward(F.cross_entropy, None))
        small = [(data[0][0][:1], data[0][1][:1])]
        score(model, graph, small, scoring)  # what is imported and allocated once is in place
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + 48 * 2**20
        warnings.simplefilter("always")
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        frugal = score(model, graph, data, scoring)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        whole = score(model, graph, data, scoring)
        for name, values in whole.sums["mpmg"].items():
            torch.testing.assert_close(frugal.sums["mpmg"][name], values, rtol=1e-3, atol=1e-7)
        print("same")
    """)
    result = run_fresh(script, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.strip() == "same"
    assert "out of memory while scoring" in result.stderr
