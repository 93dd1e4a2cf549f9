"""`ranp.fit`: the least pruned network that keeps its budgets."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ranp
from ranp.errors import InfeasibleError, UsageError
from ranp.fitting import DoesNotFit, machine, scoring
from ranp.fitting.costing import CPU_MARGIN
from ranp.fitting.target import batch_like
from ranp.fitting.training_step import TrainingStep
from ranp.pipeline import Scoring
from ranp.pruning import Choice, make_forward
from ranp.pruning.search import DELTA
from ranp.report.page import write_report
from ranp.resources.step_model import StepModel
from ranp.resources.training_memory import LOSS_MARGIN, LossNotCounted
from ranp.slimming import slim_model
from tests.cli import factories
from tests.pruning.nets import given_back
from tests.resources.allocator import step_peak

MiB = 2**20
STEP = {"batch": 2, "input": (2, 24, 24, 24), "device": "cpu"}


def peak(model, batch=2, edge=24, **options):
    """What a step takes, by a batch written by hand."""
    x = torch.zeros(batch, 2, edge, edge, edge)
    y = torch.zeros(batch, edge, edge, edge, dtype=torch.int64)
    return ranp.predict_training_memory(
        model,
        (x, y),
        forward=lambda model, pair: F.cross_entropy(model(pair[0]), pair[1]),
        **options,
    ).peak


@pytest.mark.parametrize("width", [8, 16])
def test_memory_is_kept_and_no_more_is_pruned_than_that_takes(
    width, model, loader, loss, monkeypatch
):
    """Kernels for AVX2 take channels by 8, those for AVX-512 by 16: steps are twice as large."""
    monkeypatch.setattr("ranp.resources.convolution_workspace.vector_width", lambda: width)
    budget = int(0.7 * peak(model))
    with given_back(model):
        result = ranp.fit(model, loader, loss, memory=budget, **STEP)
    assert result.binding == "memory"
    assert (1 - 0.1 * width / 8) * budget < peak(result.model) <= budget
    assert result.figures["slim"]["memory"] == peak(result.model)
    assert result.figures["full"]["memory"] == peak(model)

    wider = ranp.plan(
        model,
        result.scores,
        sparsity=result.sparsity - 2 * DELTA,
        method=result.plan.method,
        example_input=(1, 2, 24, 24, 24),
    ).apply(model)
    assert peak(wider) > (1 - CPU_MARGIN) * budget


def test_a_real_step_keeps_the_budget(model, loader, loss):
    budget = int(0.6 * peak(model))
    slim = ranp.fit(model, loader, loss, memory=budget, **STEP).model.train()
    x, y = torch.randn(2, 2, 24, 24, 24), torch.zeros(2, 24, 24, 24, dtype=torch.int64)
    measured = step_peak(
        slim, x, torch.optim.Adam(slim.parameters()), lambda output: loss(output, y)
    )
    assert 0.85 * budget < measured + y.nbytes <= budget


def test_operations_and_parameters_are_kept(model, loader, loss):
    full = ranp.count(model, ranp.trace(model, (1, 2, 24, 24, 24)))
    by_flops = ranp.fit(model, loader, loss, flops=full.gflops * 0.5e9, **STEP)
    assert by_flops.binding == "flops"
    assert 0.45 < by_flops.after.gflops / full.gflops <= 0.5

    by_params = ranp.fit(model, loader, loss, params=0.4 * full.parameters, **STEP)
    numbers = sum(p.numel() for p in by_params.model.parameters())
    assert by_params.binding == "params" and by_params.figures["slim"]["params"] == numbers
    assert 0.36 < numbers / full.parameters <= 0.4
    assert by_params.alternatives == ()


def test_a_share_of_memory_is_one_of_what_the_network_takes(model, loader, loss):
    """The CUDA context is there in any case: 512 MiB here, and the network takes less."""
    context, step = 512 * 2**20, {**STEP, "device": "cuda"}
    result = ranp.fit(model, loader, loss, memory="50%", **step)
    full, slim = (result.figures[name]["memory"] - context for name in ("full", "slim"))
    assert full < context
    assert 0.45 * full < slim <= 0.5 * full
    assert result.budgets[0].limit == context + 0.5 * full
    said = "50 % of the memory is of what pruning can change: any network takes 512.0 MiB"
    assert said in result.notes[0] and said in " ".join(str(result).split())


@pytest.mark.parametrize("resource", ["memory", "flops", "params"])
def test_the_table_has_every_method_and_the_one_that_keeps_most_first(
    model, loader, loss, resource
):
    result = ranp.fit(model, loader, loss, **{resource: "50%"}, **{**STEP, "device": "cuda"})
    assert {each.method for each in result.methods} == {"ranp-f", "ranp-m", "ranp-p", "weighted"}
    kept = [each.neurons or 0 for each in result.methods]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] == sum(len(layer.kept) for layer in result.plan.layers.values())
    assert result.methods[0].method == result.plan.method
    _, _, below = str(result).partition("Neurons that RANP keeps within the budgets, by resource\n")
    rows = [line.split() for line in below.splitlines()[1 : 1 + len(kept)]]
    assert [(row[0], int(row[1].replace("-", "0"))) for row in rows] == [
        (each.method, number) for each, number in zip(result.methods, kept, strict=True)
    ]


class Tied(nn.Module):
    """Additions and a concatenation tie layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv3d(2, 12, 3, padding=1)
        self.second = nn.Conv3d(12, 12, 3, padding=1)
        self.down = nn.Conv3d(12, 24, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose3d(24, 16, 2, stride=2)
        self.head = nn.Conv3d(28, 3, 1)

    def forward(self, x):
        x = self.first(x).relu()
        x = x + self.second(x).relu()
        return self.head(torch.cat([x, self.up(self.down(x).relu()).relu()], 1))


COST = {
    "memory": lambda model: (
        ranp.predict_training_memory(
            model,
            (2, 2, 16, 16, 16),
            loss=lambda y: F.cross_entropy(y, y[:, 0].long()),
            device="cuda",
        ).peak
    ),
    "flops": lambda model: 1e9 * ranp.count(model, ranp.trace(model, (1, 2, 16, 16, 16))).gflops,
    "params": lambda model: sum(p.numel() for p in model.parameters()),
}


@pytest.mark.parametrize("resource", COST)
@pytest.mark.parametrize("tied", [True, False])
def test_no_other_method_of_the_table_keeps_more_neurons(tied, resource, model, loader, loss):
    torch.manual_seed(0)
    model = Tied() if tied else model
    step = {"batch": 1, "input": (2, 16, 16, 16), "device": "cuda"}
    result = ranp.fit(model, loader, loss, **{resource: "50%"}, **step)
    names = [each.method for each in result.methods]
    assert set(names) == {"ranp-f", "ranp-m", "ranp-p", "weighted"}
    assert names[0] == result.plan.method == result.chooser.choice.method.name
    kept = result.methods[0].neurons
    assert kept == sum(len(layer.kept) for layer in result.plan.layers.values())
    assert result.figures["slim"][resource] <= result.budgets[0].limit

    graph = result.chooser.graph
    for name in names:
        chooser = replace(result.chooser, choice=Choice.make(name))
        for step in range(99, -1, -1):
            alive = chooser.choose(0.01 * step)
            is_feasible = not graph.empty_layers(alive)
            if is_feasible and sum(map(len, graph.kept(alive).values())) > kept:
                break
        assert COST[resource](slim_model(model, graph, alive)) > result.budgets[0].limit


@pytest.mark.parametrize("method", ["thin", "power"])
def test_rules_fill_a_budget_as_prune_does(method, model, loader, loss):
    step = {"batch": 1, "input": (2, 8, 8, 8), "device": "cuda"}
    fitted = ranp.fit(model, loader, loss, flops="40%", method=method, **step)
    pruned = ranp.prune(model, loader, loss, flops="40%", method=method)
    budget = 0.4 * fitted.before.gflops
    for result in (fitted, pruned):
        assert 0.97 * budget <= result.after.gflops <= budget
    assert fitted.after.gflops == pytest.approx(pruned.after.gflops, rel=0.01)

    tight = ranp.fit(model, loader, loss, memory="60%", method=method, **step)
    plain = ranp.plan(model, sparsity=tight.sparsity, method=method, graph=tight.chooser.graph)
    kept, before = (sum(len(x.kept) for x in p.layers.values()) for p in (tight.plan, plain))
    assert kept >= before
    assert tight.figures["slim"]["memory"] <= tight.budgets[0].limit


def test_what_simulating_a_step_refutes_is_not_believed(model, loader, loss, monkeypatch):
    right = ranp.fit(model, loader, loss, memory="60%", method="ranp-m", **STEP)
    peak = StepModel.peak
    monkeypatch.setattr(StepModel, "peak", lambda self, alive: peak(self, alive) // 2)
    result = ranp.fit(model, loader, loss, memory="60%", method="ranp-m", **STEP)
    assert result.plan.layers == right.plan.layers
    assert result.figures == right.figures
    assert [each.sparsity for each in result.alternatives] == pytest.approx(
        [each.sparsity for each in right.alternatives], abs=0.02
    )


def test_a_method_that_is_named_is_the_only_one(model, loader, loss):
    result = ranp.fit(model, loader, loss, params="50%", method="ranp-f", **STEP)
    assert [each.method for each in result.methods] == [result.plan.method] == ["ranp-f"]
    weighed = ranp.fit(model, loader, loss, params="50%", resource="memory", **STEP)
    assert [each.method for each in weighed.methods] == ["ranp-f"]


class GroupNormed(nn.Module):
    """A residual block between group norms: channels are tied by fours, and by the addition."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv3d(2, 16, 3, padding=1), nn.Conv3d(16, 16, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(4, 16), nn.GroupNorm(4, 16)])
        self.wide, self.head = nn.Conv3d(16, 32, 3, padding=1), nn.Conv3d(32, 3, 1)

    def forward(self, x):
        x = self.first(x)
        x = x + self.second(self.norms[0](x).relu())
        return self.head(self.wide(self.norms[1](x).relu()).relu())


def test_a_sparsity_that_is_missed_is_said_with_what_would_reach_it(loader, loss, model):
    def removed(plan):
        layers = plan.layers.values()
        return 1 - sum(len(layer.kept) for layer in layers) / sum(each.neurons for each in layers)

    torch.manual_seed(0)
    tied = GroupNormed()
    short = ranp.prune(tied, loader, loss, sparsity=0.5)
    assert removed(short.plan) < 0.48
    assert f"{100 * removed(short.plan):.1f} % of the neurons are removed, 50.0 %" in str(short)
    assert short.summary()["shortfall"] == short.shortfall
    named = re.search(r"sparsity=([\d.]+)", short.shortfall)
    again = ranp.prune(tied, loader, loss, sparsity=float(named[1]))
    assert removed(again.plan) >= 0.5
    assert ranp.prune(model, loader, loss, sparsity=0.5).shortfall is None


class Disagreeing(nn.Module):
    """Two layers that are added up and want to lose other channels; a head that must stay."""

    def __init__(self):
        super().__init__()
        self.rising, self.falling = nn.Conv3d(1, 16, 1), nn.Conv3d(1, 16, 1)
        self.thin, self.head = nn.Conv3d(16, 4, 1), nn.Conv3d(4, 16, 1)
        number = torch.arange(16.0).reshape(16, 1, 1, 1, 1)
        with torch.no_grad():
            self.rising.weight.copy_(1 + number)
            self.falling.weight.copy_(16 - 0.9 * number)
            self.thin.weight.fill_(8 / 16)
            self.head.weight.fill_(0.01 / 4)

    def forward(self, x):
        return self.head(self.thin(self.rising(x) + self.falling(x)))


def test_what_no_higher_sparsity_reaches_names_all_that_it_takes():
    """By the paper's coupling `thin` is emptied before both layers give up many of the same."""
    asked = {"method": "magnitude", "weights": "given", "example_input": (1, 1, 4, 4, 4)}
    short = ranp.prune(Disagreeing(), sparsity=0.4, **asked)
    assert short.after.neurons > 0.8 * 52
    named = re.search(
        r"coupling='(\w+)', floor='(\w+)', sparsity=([\d.]+) reaches it", short.shortfall
    )
    coupling, floor, sparsity = named.groups()
    asked |= {"coupling": coupling, "floor": floor, "sparsity": float(sparsity)}
    assert ranp.prune(Disagreeing(), **asked).after.neurons <= 0.6 * 52


def test_the_coupling_that_suits_the_network_is_tried_unless_a_method_is_named(loader, loss, model):
    def ways(network, **options):
        result = ranp.fit(network, loader, loss, flops="50%", **STEP, **options)
        return {tuple(each.settings.values()) for each in result.methods}

    assert ways(GroupNormed()) == {("paper", 0), ("mean", "auto")}
    assert ways(GroupNormed(), floor=2) == {("paper", 2), ("mean", 2)}
    assert ways(model) == ways(GroupNormed(), method="ranp-f") == {("paper", 0)}
    assert ways(GroupNormed(), coupling="sum") == {("sum", 0)}


def test_a_loss_without_a_name_is_shown_by_its_line(model, loader):
    unnamed = lambda output, target: F.cross_entropy(output, target)  # noqa: E731
    here = f"lambda at {Path(__file__).name}:{unnamed.__code__.co_firstlineno}"
    losses = {here: unnamed, "cross_entropy": partial(F.cross_entropy, reduction="sum")}
    losses["CrossEntropyLoss"] = nn.CrossEntropyLoss()
    for name, loss in losses.items():
        fitted = ranp.fit(model, loader, loss, flops="50%", method="layerwise", **STEP)
        assert fitted.loss == name
    by_forward = ranp.fit(
        model, loader, forward=lambda net, xy: net(xy[0]).sum(), flops="50%", method="layerwise"
    )
    assert re.fullmatch(rf"lambda at {Path(__file__).name}:\d+", by_forward.loss)


def test_couplings_that_make_no_difference_share_a_row(loader, loss):
    fitted = ranp.fit(GroupNormed(), loader, loss, flops="50%", **STEP)
    first = fitted.methods[0]
    tied = replace(first, settings={"coupling": "mean", "floor": "auto"})
    paper = replace(tied, settings={"coupling": "paper", "floor": 0}, sparsity=0.25)
    fewer = replace(paper, neurons=paper.neurons - 1)

    def shown(*tried):
        rows = replace(fitted, methods=tried).method_rows()
        return [(row["method"], row["sparsity"]) for row in rows]

    name, at = tied.method, f"{tied.sparsity:.4f}"
    assert shown(tied, paper) == [(name, at)]
    assert shown(tied, fewer) == [(f"{name}, coupling mean", at), (name, "0.2500")]


def test_what_a_method_cannot_reach_names_the_coupling_that_can(loader, loss):
    torch.manual_seed(0)
    with pytest.raises(DoesNotFit, match="these would: coupling 'mean' with floor 'auto'"):
        ranp.fit(GroupNormed(), loader, loss, flops="8%", method="magnitude", **STEP)


def test_of_several_budgets_the_tightest_binds(model, loader, loss):
    memory, parameters = peak(model), sum(p.numel() for p in model.parameters())
    result = ranp.fit(model, loader, loss, memory=0.95 * memory, params=parameters // 4, **STEP)
    assert result.binding == "params"
    assert result.figures["slim"]["memory"] <= 0.95 * memory
    assert result.figures["slim"]["params"] <= parameters // 4


def test_a_network_that_fits_is_left_whole(model, loader, loss):
    result = ranp.fit(model, loader, loss, memory="4GiB", flops="1TFLOPs", **STEP)
    assert result.sparsity == 0 and result.binding is None and result.alternatives == ()
    assert sum(p.numel() for p in result.model.parameters()) == sum(
        p.numel() for p in model.parameters()
    )
    assert "nothing is pruned" in str(result)


def test_a_tighter_budget_prunes_more(model, loader, loss):
    scores = ranp.score(model, loader, loss)
    sparsities = [
        ranp.fit(model, scores=scores, memory=int(share * peak(model)), **STEP).sparsity
        for share in (0.9, 0.7, 0.5)
    ]
    assert 0 < sparsities[0] < sparsities[1] < sparsities[2]


def test_channels_come_in_multiples(model, loader, loss):
    result = ranp.fit(model, loader, loss, memory=0.7 * peak(model), multiple=4, **STEP)
    widths = [
        m.out_channels
        for name, m in result.model.named_modules()
        if isinstance(m, nn.Conv3d) and name != "head"
    ]
    assert all(width % 4 == 0 for width in widths)
    assert result.figures["slim"]["memory"] <= 0.7 * peak(model)


def test_alternatives_keep_the_budget_and_prune_less(model, loader, loss):
    large = {"batch": 2, "edge": 96, "device": "cuda"}
    budget = int(0.5 * peak(model, **large))
    result = ranp.fit(
        model, loader, loss, memory=budget, batch=2, input=(2, 96, 96, 96), device="cuda"
    )
    by_change = {each.changes: each for each in result.alternatives}
    assert list(by_change) == sorted(by_change, key=lambda c: (by_change[c].sparsity, len(c)))
    assert all(each.sparsity < result.sparsity for each in result.alternatives)

    half = by_change["batch 1",]
    slim = ranp.plan(
        model,
        result.scores,
        sparsity=half.sparsity,
        method=result.plan.method,
        example_input=(1, 2, 96, 96, 96),
    ).apply(model)
    assert peak(slim, **{**large, "batch": 1}) == half.figures["memory"] <= budget

    # What fits as it is is not joined with anything else.
    whole = [set(changes) for changes, each in by_change.items() if each.sparsity == 0]
    assert not any(one < set(other) for one in whole for other in by_change)


def test_what_cannot_be_reached_says_how_near_one_comes_and_what_would_do(model, loader, loss):
    with pytest.raises(DoesNotFit) as caught:
        ranp.fit(model, loader, loss, memory="2MiB", **STEP)
    error = caught.value
    assert isinstance(error, InfeasibleError) and error.exit_code == 3
    message = str(error)
    assert message.startswith(
        "no network pruned by ranp-f, ranp-m, ranp-p, weighted keeps a memory budget of 2.0 MiB "
        "with batch 2, 2x24x24x24, adam, cpu: "
    )
    assert f"the closest takes {error.nearest.figures['memory'] / MiB:.1f} MiB" in message
    assert error.nearest.figures["memory"] > 2 * MiB


def test_alternatives_are_named_where_nothing_else_fits(model):
    step = {"batch": 4, "input": (2, 32, 32, 32), "device": "cpu"}
    protect = ["*"]  # nothing can be pruned
    budget = 0.7 * ranp.predict_training_memory(model, (4, 2, 32, 32, 32)).peak
    with pytest.raises(DoesNotFit, match="these would: ") as caught:
        ranp.fit(model, method="random", protect=protect, memory=budget, **step)
    assert ("batch 2",) in {each.changes for each in caught.value.alternatives}
    assert all(each.figures["memory"] <= budget for each in caught.value.alternatives)


def test_nothing_of_the_training_size_is_allocated(model, loader, loss):
    result = ranp.fit(
        model, loader, loss, params="40k", batch=8, input=(2, 512, 512, 512), device="cuda"
    )
    assert result.figures["full"]["memory"] > 200 * 2**30


def test_batch_and_input_are_the_loaders(model, loader, loss):
    result = ranp.fit(model, loader, loss, memory="1GiB", device="cpu")
    assert result.step.shape == (2, 2, 8, 8, 8)


def test_methods_without_data_need_no_loader(model):
    result = ranp.fit(model, method="random", params="20k", **STEP)
    assert result.scores is None
    assert 18_000 < sum(p.numel() for p in result.model.parameters()) <= 20_000


def test_it_is_saved_with_the_timelines_of_its_step(model, loader, loss, tmp_path):
    result = ranp.fit(model, loader, loss, memory=0.7 * peak(model), **STEP)
    page = write_report(result.save(tmp_path / "out")).read_text()
    assert 'id="timeline"' in page and 'id="peak"' in page
    lines = ranp.files.read_sealed_json(tmp_path / "out/pruning.json", "record")["timelines"]
    assert max(lines["slim"]["bytes"]) == lines["slim"]["peak"] == peak(result.model)
    assert 0 < lines["full"]["backward"] < lines["full"]["step"] <= len(lines["full"]["bytes"])


def test_terminal_page_and_json_show_one_number(model, loader, loss, tmp_path):
    step = {"batch": 1, "input": (2, 24, 24, 24), "device": "cuda", "precision": "bf16"}
    result = ranp.fit(model, loader, loss, flops="60%", memory="8GiB", **step)
    text, page = str(result), write_report(result.save(tmp_path)).read_text()
    found = result.summary()
    assert list(found)[1:4] == ["budgets", "step", "loss"] and found["loss"] == "cross_entropy"
    first = "Budgets: batch 1, 2x24x24x24, adam, bf16 mixed precision, cuda, cross_entropy"
    assert text.startswith(first)
    for name in ("full", "slim"):
        peak = result.memory[name].peak
        assert found["figures"][name]["memory"] == found["memory"][name]["peak"] == peak
        assert f"{peak / MiB:.1f} MiB" in text and f"{peak / MiB:.1f}" in page
    assert found["predicted_peak_bytes"] == result.memory["slim"].peak
    assert "cross_entropy" in page and "8.00 GiB" in page and "8.00 GiB" in text


def test_the_summary_names_budget_peak_and_alternatives(model, loader, loss):
    large = {"batch": 2, "input": (2, 96, 96, 96), "device": "cuda"}
    budget = 0.5 * peak(model, edge=96, device="cuda")
    result = ranp.fit(model, loader, loss, memory=budget, **large)
    text = str(result)
    assert f"Sparsity {result.sparsity:.4f} keeps every budget; memory" in text
    assert "What holds the peak of the slim network, in the backward pass" in text
    assert "Alternatives with less pruning" in text and "batch 1" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_loss_that_looks_at_its_target_is_predicted(model, loader, loss):
    def looks(output, target):
        return F.cross_entropy(output, target) * (2 if target.sum() > 0 else 1)

    result = ranp.fit(model, loader, looks, memory="1GiB", **STEP)
    plain = ranp.fit(model, loader, loss, memory="1GiB", **STEP)
    assert result.notes == ()
    assert result.figures["full"]["memory"] == pytest.approx(plain.figures["full"]["memory"], 0.01)


def test_a_forward_is_predicted_as_the_loss_that_it_computes(model, loader, loss):
    named = [{"volume": x, "mask": y, "case": "a"} for x, y in loader]

    def forward(model, batch):
        return loss(model(batch["volume"]), batch["mask"])

    result = ranp.fit(model, named, forward=forward, memory="1GiB", **STEP)
    plain = ranp.fit(model, loader, loss, memory="1GiB", **STEP)
    assert result.figures == plain.figures


def test_a_network_with_two_inputs_is_fitted_at_the_size_that_it_is_trained_at():
    size, model = (1, 12, 12, 12), factories.TwoInputs()
    larger = {
        "ct": torch.zeros(1, *size),
        "pet": torch.zeros(1, 2, *size[1:]),
        "mask": torch.zeros(size, dtype=torch.long),
    }
    predict = partial(ranp.predict_training_memory, forward=factories.forward, device="cpu")
    whole = predict(model, larger).peak
    result = ranp.fit(
        model,
        factories.named_batches(),
        forward=factories.forward,
        memory="70%",
        input=size,
        device="cpu",
    )
    assert result.figures["full"]["memory"] == whole
    assert result.figures["slim"]["memory"] <= 0.7 * whole
    assert result.chooser.graph.inputs.shapes == ((1, *size), (1, 2, 12, 12, 12))
    assert factories.forward(result.model, larger).isfinite()


def test_a_loss_that_looks_at_the_output_has_a_margin_and_promises_nothing(model, loader):
    def looks(output, target):
        return F.cross_entropy(output, target) * (2 if output.sum() > 0 else 1)

    with pytest.warns(LossNotCounted, match="could not be predicted"):
        result = ranp.fit(model, loader, looks, memory=0.8 * peak(model), **STEP)
    outputs = 4 * 2 * 24**3 * result.model.head.out_channels
    assert result.memory["slim"].loss_margin == LOSS_MARGIN * outputs
    assert "keeps every budget" not in str(result)
    assert "may keep every budget, but what the loss takes is not known" in str(result)
    assert re.search(r"values of tensors \(test_fit.py:\d+\)\. A margin", result.notes[0])
    assert "measure a step" in result.notes[0]


def hungry(output, target):
    """A loss that keeps 8 MiB for the backward pass, whatever the network is."""
    return F.cross_entropy(output, target) + output.mean().expand(2**21).exp().mean()


def test_it_is_said_where_most_of_the_memory_is_out_of_reach(model, loader, caplog):
    result = ranp.fit(model, loader, hungry, memory="75%", **STEP)
    limit, full = (result.budgets[0].limit, result.figures["full"]["memory"])
    chooser = result.chooser
    smallest = slim_model(
        model, chooser.graph, chooser.choose(chooser.max_sparsity()), init="fresh", seed=0
    )
    batch = (torch.zeros(2, 2, 24, 24, 24), torch.zeros(2, 24, 24, 24, dtype=torch.long))
    stays = ranp.predict_training_memory(
        smallest, batch, forward=make_forward(hungry, None), device="cpu"
    ).peak
    assert 8 * MiB < stays < limit == pytest.approx(0.75 * full)
    (note,) = result.notes
    assert note.startswith(
        f"{100 * stays / limit:.0f} % of the memory budget ({stays / MiB:.1f} MiB of "
        f"{limit / MiB:.1f} MiB) stay however much is pruned, most of it in the loss and between"
    )
    least = min(result.plan.layers.values(), key=lambda layer: len(layer.kept) / layer.neurons)
    assert f"as little as {len(least.kept)} of {least.neurons} channels" in note
    assert note in caplog.text and note in str(result).replace("\n", " ")


def test_nothing_is_said_where_pruning_reaches_what_is_asked_for(model, loader, loss):
    assert ranp.fit(model, loader, loss, memory="65%", **STEP).notes == ()


def test_a_loss_that_takes_no_smaller_volumes_leaves_out_the_crops(model, loader, loss):
    def picky(output, target):
        if output.shape[-1] not in (8, 24):
            raise ValueError("these are too small for me")
        return loss(output, target)

    result = ranp.fit(model, loader, picky, memory="50%", **STEP)
    assert result.figures["slim"]["memory"] <= 0.5 * result.figures["full"]["memory"]
    assert not any("crop" in change for each in result.alternatives for change in each.changes)


def test_targets_grow_with_the_step():
    seen = []

    def see(x, targets, step):
        given = batch_like(lambda model, batch: None, (x, targets))(step).example_input
        assert given[0].shape == step.shape
        seen.append(tuple(t.shape for t in given[1]))

    targets = (torch.zeros(2, 8, 6), torch.zeros(2, 3), torch.zeros(5))
    see(torch.zeros(2, 1, 8, 6), targets, TrainingStep(batch=7, sample=(1, 80, 60)))
    halves = (torch.zeros(2, 1, 4, 6), torch.zeros(2, 1, 4, 3), torch.zeros(2, 1, 1, 1))
    see(torch.zeros(2, 1, 8, 6), halves, TrainingStep(batch=7, sample=(1, 80, 60)))
    lines = (torch.zeros(2, 8), torch.zeros(2, 4))
    see(torch.zeros(2, 1, 8), lines, TrainingStep(batch=7, sample=(1, 80)))
    assert seen == [
        ((7, 80, 60), (7, 3), (5,)),
        ((7, 1, 40, 60), (7, 1, 40, 30), (7, 1, 1, 1)),
        ((7, 80), (7, 4)),
    ]


class DeeplySupervised(nn.Module):
    """Two resolutions, each with a head."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv3d(1, 16, 3, padding=1)
        self.second = nn.Conv3d(16, 16, 3, stride=2, padding=1)
        self.heads = nn.ModuleList([nn.Conv3d(16, 3, 1), nn.Conv3d(16, 3, 1)])

    def forward(self, x):
        x = self.first(x).relu()
        return [self.heads[0](x), self.heads[1](self.second(x).relu())]


def test_targets_of_several_resolutions():
    def loss(outputs, targets):
        return sum(F.cross_entropy(o, t) for o, t in zip(outputs, targets, strict=True))

    targets = [torch.zeros(2, edge, edge, edge, dtype=torch.long) for edge in (8, 4)]
    batch = {"data": torch.randn(2, 1, 8, 8, 8), "target": targets}
    result = ranp.fit(
        DeeplySupervised(), [batch], loss, memory="60%", batch=4, input=(1, 16, 16, 16)
    )
    assert result.figures["slim"]["memory"] <= 0.6 * result.figures["full"]["memory"]
    assert result.notes == ()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give at least one budget: memory, flops, params, latency"),
        ({"memory": "8 apples"}, "must be an amount such as 8GiB or 50%, got '8 apples'"),
        ({"memory": "1GiB", "optimizer": "lion"}, "optimizer must be one of .*got 'lion'"),
        ({"memory": "1GiB", "precision": "8"}, "precision must be one of .*got '8'"),
        ({"memory": "1GiB", "batch": 0}, "batch must be at least 1, got 0"),
        ({"memory": "1GiB", "method": "magic"}, "magic"),
    ],
)
def test_wrong_arguments_are_refused(model, loader, loss, options, says):
    with pytest.raises(UsageError, match=says):
        ranp.fit(model, loader, loss, **options)


def test_without_a_loader_it_must_be_said_what_is_trained_with(model):
    with pytest.raises(UsageError, match="give batch and input"):
        ranp.fit(model, memory="1GiB", method="random")
    with pytest.raises(UsageError, match="ranp-f scores with data; give a loader, or scores"):
        ranp.fit(model, loss=F.cross_entropy, memory="1GiB", batch=1, input=(2, 8, 8, 8))


# Scoring with little memory.


@pytest.fixture
def little_memory(monkeypatch):
    """Lets scoring take 100 bytes for a sample, 30 with checkpointing."""

    def have(free):
        monkeypatch.setattr(machine, "available_memory", lambda device: free)
        monkeypatch.setattr(scoring, "predict_training_memory", predict)

    def predict(model, batch, recompute, **options):
        return SimpleNamespace(peak=(30 if recompute else 100) * len(batch[0]))

    return have


@pytest.mark.parametrize(
    ("free", "asked", "per", "recompute"),
    [
        (230, "batch", "batch", False),
        (220, "batch", "sample", False),
        (120, "batch", "sample", False),
        (120, "sample", "sample", False),
        (100, "batch", "sample", True),
        (100, "sample", "sample", True),
        (34, "batch", "sample", True),
    ],
)
def test_scoring_takes_what_there_is(
    model, loader, loss, little_memory, free, asked, per, recompute
):
    little_memory(free)  # nine tenths of it can be used
    given = Scoring(make_forward(loss, None), per=asked)
    found, notes = scoring.within_memory(model, loader[0], given)
    assert (found.per, found.recompute) == (per, recompute)
    assert any("single samples" in note for note in notes) == (asked != per)


def test_scoring_that_does_not_fit_is_refused_before_it_begins(model, loader, loss, monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda device: MiB)
    with pytest.raises(InfeasibleError, match=r"has 1\.0 MiB left; score with smaller"):
        ranp.fit(model, loader, loss, memory="1GiB", **STEP)


def test_how_it_was_scored_is_said(model, loader, loss, little_memory):
    little_memory(120)
    result = ranp.fit(model, loader, loss, memory="1GiB", **STEP)
    assert result.notes == ("scored with single samples, to fit this machine",)
    assert result.scores.batches == 2
    assert result.scores.settings["per"] == "sample"


def test_this_machine_has_memory():
    free = machine.available_memory(torch.device("cpu"))
    assert free is None or 2**24 < free < 2**50
