"""One pipeline: nothing is done twice, and methods and resources come from anywhere."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ranp
from ranp.graph import build_graph
from ranp.peeking import peek
from ranp.pipeline import Events, Scoring, prune, trace
from ranp.pruning import METHODS, Choice, make_forward
from ranp.resources import count
from ranp.resources.budgets import RESOURCES
from tests.fresh import run_fresh


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv3d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv3d(12, 16, 3, padding=1), nn.ReLU(),
        nn.Conv3d(16, 3, 1),
    )  # fmt: skip


class Loader:
    """Batches of one sample, and how often they were asked for."""

    def __init__(self, count: int = 4) -> None:
        torch.manual_seed(1)
        self.batches = [
            (torch.randn(1, 1, 8, 8, 8), torch.randint(0, 3, (1, 8, 8, 8))) for _ in range(count)
        ]
        self.opened = 0

    def __iter__(self):
        self.opened += 1
        return iter(self.batches)


@pytest.fixture
def calls(monkeypatch):
    """Which networks are traced and counted: by function, how often with the same arguments."""
    found = {"traced": Counter(), "counted": Counter()}

    def traced(model, example_input, **options):
        found["traced"][str(example_input)] += 1
        return build_graph(model, example_input, **options)

    def counted(model, graph, alive=None, **options):
        alive = graph.all_alive() if alive is None else alive
        found["counted"][graph.inputs.shapes, alive.tobytes()] += 1
        return count(model, graph, alive, **options)

    for module in [m for name, m in sys.modules.items() if name.startswith("ranp")]:
        for name, original, ours in (
            ("build_graph", build_graph, traced),
            ("count", count, counted),
        ):
            if vars(module).get(name) is original:
                monkeypatch.setattr(module, name, ours)
    return found


def test_prune_traces_counts_and_opens_once(calls, tmp_path):
    loader = Loader()
    result = ranp.prune(network(), loader, F.cross_entropy, sparsity=0.5)
    assert result.scores.batches == 4
    result.save(tmp_path)
    assert calls["traced"] == {"(1, 1, 8, 8, 8)": 1}
    assert set(calls["counted"].values()) == {1}
    assert loader.opened == 1


def test_fit_traces_counts_and_opens_once(calls, tmp_path):
    loader = Loader()
    result = ranp.fit(network(), loader, F.cross_entropy, memory="60%", flops="50%", device="cpu")
    assert result.sparsity > 0 and result.scores.batches == 4
    result.save(tmp_path)
    # Once at the size that is trained at, once at the smaller crop of the alternatives.
    assert set(calls["traced"].values()) == {1} and "(1, 1, 8, 8, 8)" in calls["traced"]
    assert set(calls["counted"].values()) == {1}
    assert loader.opened == 1


def test_an_iterator_gets_its_first_batch_back():
    batches = peek(iter([1, 2, 3]))
    assert batches.first == 1
    assert list(batches.loader) == [1, 2, 3]
    empty = peek(iter(()))
    assert empty.first is None and list(empty.loader) == []


def test_a_listener_stops_scoring_and_sees_what_there_is():
    class Two(Events):
        found = None

        def on_batch(self, scores):
            return scores.batches == 2

        def on_scored(self, scores, verdict):
            self.found = (scores.batches, verdict)

    events = Two()
    traced = trace(network(), Loader())
    scoring = Scoring(make_forward(F.cross_entropy, None))
    result = prune(traced, Choice.make("weighted"), 0.5, scoring, events=events)
    assert events.found == (2, None) and result.scores.batches == 2


def test_the_core_needs_no_pages(tmp_path):
    program = f"""
import sys
sys.modules["jinja2"] = None
import torch, ranp
from torch import nn
model = nn.Sequential(nn.Conv3d(1, 4, 1), nn.Conv3d(4, 2, 1))
batches = [(torch.randn(1, 1, 2, 2, 2), torch.zeros(1, 2, 2, 2).long())]
result = ranp.prune(model, batches, nn.functional.cross_entropy, sparsity=0.5)
result.save({str(tmp_path)!r})
assert "sparsity" in str(result.plan.settings) and "ranp.report.page" not in sys.modules
"""
    done = run_fresh(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pruning.json").exists() and not (tmp_path / "report.html").exists()


OWN = """
import ranp
from ranp.pruning import Criterion, Method, PerGradient
from ranp.resources.budgets import Resource

def joules(layer):
    return layer.flops + layer.activations

squares = PerGradient("squares", lambda g: (g * g).sum(1))
ranp.register_method(
    Method(
        "squared",
        "sum of squared mask gradients, reweighted by energy",
        Criterion("squares", lambda scores: scores.average("squares"), (squares,)),
        resource="energy",
    )
)
ranp.register_resource(
    Resource(
        "energy",
        "joules of a forward pass, made up",
        {"": 1.0, "j": 1.0},
        "5J",
        lambda value: f"{value:.2f} J",
        layer_costs=lambda model, graph, costs: {x.name: joules(x) for x in costs.layers},
        total=lambda costs: sum(joules(x) for x in costs.layers),
    )
)
"""


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """A method with a new criterion and a resource, from a file outside the package."""
    (tmp_path / "own_rows.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("own_rows")
    yield
    del METHODS["squared"], RESOURCES["energy"], sys.modules["own_rows"]


def test_a_method_and_a_resource_from_outside(own_file):
    model, loader = network(), Loader(1)
    result = ranp.prune(
        model, loader, F.cross_entropy, sparsity=0.5, method="squared", weights="given"
    )
    x, y = loader.batches[0]
    F.cross_entropy(model(x), y).backward()
    layers = {"0": model[0], "2": model[2], "4": model[4]}
    s = {n: ((m.weight.grad * m.weight) ** 2).flatten(1).sum(1) for n, m in layers.items()}
    flops = {"0": 512 * 12 * 28, "2": 512 * 16 * (27 * 12 + 1), "4": 512 * 3 * 17}
    tau = np.array([flops[n] + 512 * m.out_channels for n, m in layers.items()])
    weights = np.exp(-tau / tau.max())
    for (name, expected), w in zip(s.items(), weights / weights.sum(), strict=True):
        found = result.chooser.importance[name]
        np.testing.assert_allclose(found, expected.detach() * (1 + 11 * w), rtol=1e-5)
    assert result.plan.method == "squared"

    fitted = ranp.fit(
        *(network(), Loader(1), F.cross_entropy),
        budget={"energy": "50%"},
        method="squared",
        device="cpu",
    )
    energy = [sum(x.flops + x.activations for x in c.layers) for c in (fitted.before, fitted.after)]
    assert fitted.binding == "energy" and fitted.figures["slim"]["energy"] == energy[1]
    assert 0.35 * energy[0] < energy[1] <= 0.5 * energy[0]
    assert "J" in str(fitted)


def test_names_are_taken_once():
    with pytest.raises(ranp.UsageError, match="'ranp-f' is already registered"):
        ranp.register_method(METHODS["vanilla"].__class__("ranp-f", "another"))
    with pytest.raises(ranp.UsageError, match="'flops' is already registered"):
        flops = RESOURCES["params"]
        ranp.register_resource(flops.__class__("flops", *list(vars(flops).values())[1:]))
