"""Layers that only some settings of a network reach, and channel counts kept as attributes."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import ranp
from ranp.errors import IntegrityError, UsageError
from ranp.graph import build_graph
from ranp.slimming import Plan, slim_model
from tests.oracle import Reference, random_alive

INPUT = (1, 1, 8, 8)
SWITCHES = {"decoder.deep_supervision": (True, False)}


class Encoder(nn.Module):
    """Keeps its widths as attributes, as nnU-Net's encoders do."""

    def __init__(self, widths):
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU())
            for i, o in zip((1, *widths), widths, strict=False)
        )
        self.input_channels = 1
        self.output_channels = list(widths)
        self.strides = [1] * len(widths)

    def forward(self, x):
        return [x := stage(x) for stage in self.stages]


class Decoder(nn.Module):
    def __init__(self, widths, deep_supervision):
        super().__init__()
        self.deep_supervision = deep_supervision
        self.in_channels = sum(widths)
        self.out_channels = widths[0]
        self.stage = nn.Conv2d(sum(widths), widths[0], 3, padding=1)
        self.heads = nn.ModuleList([nn.Conv2d(w, 2, 1) for w in (widths[0], *widths)])

    def forward(self, skips):
        x = self.heads[0](self.stage(torch.cat(skips, 1)).relu())
        if not self.deep_supervision:
            return x
        return [x, *(head(skip) for head, skip in zip(self.heads[1:], skips, strict=True))]


class Net(nn.Module):
    def __init__(self, deep_supervision):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = Encoder((6, 10))
        self.decoder = Decoder((6, 10), deep_supervision)

    def forward(self, x):
        return self.decoder(self.encoder(x))


def test_layers_that_are_not_reached_are_named():
    (note,) = build_graph(Net(False), INPUT).notes
    assert note.startswith("2 layers that the forward does not call")
    assert "('decoder.heads.1', 'decoder.heads.2')" in note
    assert build_graph(Net(True), INPUT).notes == ()


@pytest.mark.parametrize("made_with", [True, False])
@pytest.mark.parametrize("run_with", [True, False])
def test_a_network_can_be_switched_after_slimming(made_with, run_with):
    model = Net(made_with).double()
    graph = build_graph(model, INPUT, switches=SWITCHES)
    assert graph.notes == ()
    alive = random_alive(graph, 0.5)
    slim = slim_model(model, graph, alive)
    for each in (model, slim):
        each.decoder.deep_supervision = run_with
    x = torch.randn(INPUT, dtype=torch.float64)
    assert len(slim(x)) == (3 if run_with else 1)
    found = Reference(model, graph, alive, (x,)).compare(slim)
    assert found.error <= 1e-10 and found.effect > 1e-3


def test_without_switches_a_slim_network_cannot_be_switched():
    graph = build_graph(Net(False), INPUT)
    slim = slim_model(Net(False), graph, random_alive(graph, 0.5))
    slim.decoder.deep_supervision = True
    with pytest.raises(RuntimeError, match="channels"):
        slim(torch.zeros(INPUT))


def test_a_plan_remembers_its_switches():
    graph = build_graph(Net(True), INPUT, switches=SWITCHES)
    plan = Plan.make(graph, random_alive(graph, 0.5), method="random", settings={})
    loaded = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert loaded == plan
    on, off = loaded.apply(Net(True)), loaded.apply(Net(False))
    off.load_state_dict(on.state_dict())
    x = torch.randn(INPUT)
    assert torch.equal(on(x)[0], off(x))


def test_a_plan_without_switches_says_what_to_do():
    graph = build_graph(Net(True), INPUT)
    plan = Plan.make(graph, random_alive(graph, 0.5), method="random", settings={})
    assert "switches" not in plan.to_dict()  # plans of earlier versions have none
    with pytest.raises(IntegrityError, match=r"does not call 'decoder.heads.1'; switch it"):
        plan.apply(Net(False))


@pytest.mark.parametrize("name", ["decoder.supervision", "nowhere.deep_supervision"])
def test_unknown_switches_are_refused(name):
    with pytest.raises(UsageError, match=f"switch '{name}' must be an attribute of a module"):
        build_graph(Net(True), INPUT, switches={name: (True, False)})


def test_channel_counts_kept_as_attributes_follow():
    model = Net(True)
    graph = build_graph(model, INPUT)
    alive = random_alive(graph, 0.5)
    kept = {name: len(neurons) for name, neurons in graph.kept(alive).items()}
    slim = slim_model(model, graph, alive)
    widths = [kept["encoder.stages.0.0"], kept["encoder.stages.1.0"]]
    assert widths != [6, 10]
    assert slim.encoder.output_channels == widths
    assert slim.encoder.input_channels == 1
    assert slim.encoder.strides == [1, 1]
    # What is not the number of channels of a tensor that enters or leaves stays as it is.
    assert slim.decoder.in_channels == 16
    assert slim.decoder.out_channels == 6
    assert model.encoder.output_channels == [6, 10]


def test_prune_takes_switches_and_its_summary_holds_the_notes():
    options = {"sparsity": 0.3, "method": "random", "example_input": INPUT}
    slim = ranp.prune(Net(False), **options, switches=SWITCHES)
    slim.model.decoder.deep_supervision = True
    assert len(slim.model(torch.zeros(INPUT))) == 3
    assert "does not call" not in str(slim)
    assert "does not call" in " ".join(str(ranp.prune(Net(False), **options)).split())
