from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.networks.nets import UNet
from torch import nn
from torch.nn import functional as F

import ranp
from ranp.report.page import write_report


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv3d(1, 12, 3, padding=1), nn.BatchNorm3d(12), nn.ReLU(),
        nn.Conv3d(12, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(),
        nn.Conv3d(16, 3, 1),
    )  # fmt: skip


def batches(count: int = 6, size: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(2, 1, size, size, size, generator=generator),
            torch.randint(0, 3, (2, size, size, size), generator=generator),
        )
        for _ in range(count)
    ]


def test_prune_in_three_lines():
    model = network()
    result = ranp.prune(model, batches(), F.cross_entropy, sparsity=0.5)
    for name, tensor in network().state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    slim = result.model
    # int(31 x 0.5) = 15 neurons are retained; of the last layer's three, all in any case.
    kept = [slim[i].out_channels for i in (0, 3, 6)]
    assert kept[2] == 3
    assert 15 <= sum(kept) <= 18
    assert result.after.neurons == sum(kept)
    assert result.before.neurons == 31
    assert result.after.parameters == sum(p.numel() for p in slim.parameters())
    # 27 weights an input channel, bias once, for each of the 8^3 places; 4 for each normed element.
    a, b, c = kept
    flops = 512 * (a * 28 + 4 * a + b * (27 * a + 1) + 4 * b + c * (b + 1))
    assert result.after.gflops == pytest.approx(flops / 1e9)
    F.cross_entropy(slim(batches()[0][0]), batches()[0][1]).backward()


@pytest.mark.parametrize(
    "amounts", [{"flops": "20%"}, {"params": 1500}, {"flops": "60%", "params": "15%"}]
)
def test_budgets_are_kept_with_the_least_pruning(amounts):
    result = ranp.prune(network(), batches(), F.cross_entropy, **amounts)
    flops = {"20%": 0.2, "60%": 0.6, None: 1.0}[amounts.get("flops")] * result.before.gflops
    params = {"15%": 0.15 * result.before.parameters, 1500: 1500}.get(amounts.get("params"), 1e9)

    def keeps(costs):
        return costs.gflops <= flops and costs.parameters <= params

    chooser, sparsity = result.chooser, result.plan.settings["sparsity"]
    assert keeps(result.after)
    assert not keeps(chooser.costs(chooser.choose(sparsity - 2e-4)))
    # One way: `fit` comes to the same network.
    how = {"device": "cpu", "method": "ranp-f"}
    fitted = ranp.fit(network(), batches(), F.cross_entropy, **how, **amounts)
    assert fitted.plan.layers == result.plan.layers


def test_a_budget_of_memory_is_fitted_to_the_loaders_batches(monkeypatch):
    monkeypatch.setattr("ranp.api.default_device", lambda: "cpu")
    found = ranp.prune(network(), batches(), F.cross_entropy, memory="60%", flops="90%")
    assert isinstance(found, ranp.Fit) and found.binding == "memory"
    assert found.step.shape == (2, 1, 8, 8, 8) and found.step.optimizer == "adam"
    peaks = {name: memory.peak for name, memory in found.memory.items()}
    assert peaks["slim"] <= 0.6 * peaks["full"]
    assert found.after.gflops <= 0.9 * found.before.gflops


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        ({}, "say how much to prune"),
        ({"sparsity": 0.5, "flops": "10%"}, "got flops and sparsity"),
        ({"flops": "ten"}, "such as 20GFLOPs or 50%, got 'ten'"),
        ({"flops": "0.001%"}, "cannot reach"),
        ({"params": "0.1%"}, r"cannot reach \d+ params, 0\.1 %: .* costs \d+ params, "),
    ],
)
def test_how_much_must_be_said_once_and_be_possible(amounts, message):
    with pytest.raises(ranp.RanpError, match=message):
        ranp.prune(network(), batches(), F.cross_entropy, **amounts)


def test_networks_with_instance_norm_come_down_to_a_budget_by_themselves():
    """Residual additions tie their channels: by the paper's rule none of them could go."""
    model = UNet(3, 1, 3, channels=(8, 16), strides=(2,), num_res_units=2)
    result = ranp.prune(model, batches(2), F.cross_entropy, flops="20%")
    assert result.after.gflops <= 0.2 * result.before.gflops
    settings = result.plan.settings
    assert (settings["coupling"], settings["floor"]) == ("mean", "auto")
    by_name = ranp.prune(model, batches(2), F.cross_entropy, sparsity=0.2)
    assert (by_name.plan.settings["coupling"], by_name.plan.settings["floor"]) == ("paper", 0)


def endless():
    while True:
        yield batches(1)[0]


def test_an_endless_loader_is_no_trap():
    assert ranp.score(network(), endless(), F.cross_entropy).batches == 16
    assert ranp.prune(network(), endless(), F.cross_entropy, flops="50%").scores.batches == 16
    # All batches are the same: at the first look, after 8, the choice is that after 4.
    assert ranp.prune(network(), endless(), F.cross_entropy, sparsity=0.5).scores.batches == 8


def test_layers_left_too_thin_are_warned_of(caplog):
    result = ranp.prune(network(), batches(), F.cross_entropy, sparsity=0.8)
    kept = {name: len(layer.kept) for name, layer in result.plan.layers.items()}
    assert min(kept.values()) == 1 and kept["3"] < 3
    thin = next(name for name, number in kept.items() if number == 1)
    assert [record.name for record in caplog.records] == ["ranp", "ranp"]
    assert f"layer '{thin}' keeps a single channel" in caplog.text
    assert f"'6' has 3 classes and reads {kept['3']} of 16 channels" in caplog.text
    caplog.clear()
    ranp.prune(network(), batches(), F.cross_entropy, sparsity=0.8, floor="auto")
    assert not caplog.records


def test_progress_and_logging(capsys, monkeypatch, caplog):
    caplog.set_level("INFO", logger="ranp")
    monkeypatch.setenv("FORCE_COLOR", "1")
    ranp.prune(network(), batches(), F.cross_entropy, flops="50%")
    assert "6/6" in capsys.readouterr().err
    assert "scored 6 batches" in caplog.text
    ranp.prune(network(), iter(batches()), F.cross_entropy, sparsity=0.2, batches=3)
    assert "3/3" in capsys.readouterr().err
    ranp.prune(network(), batches(), F.cross_entropy, flops="50%", progress=False)
    monkeypatch.delenv("FORCE_COLOR")
    ranp.fit(network(), batches(), F.cross_entropy, flops="50%", device="cpu")
    assert "scoring" not in capsys.readouterr().err


def test_the_printed_result_tells_the_figures():
    result = ranp.prune(network(), batches(), F.cross_entropy, sparsity=0.5)
    text = str(result)
    assert f"{100 * result.after.gflops / result.before.gflops:.1f} %" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_values_are_short_in_a_line_and_tables_in_a_notebook():
    result = ranp.prune(network(), batches(), F.cross_entropy, sparsity=0.5)
    kept, share = result.after.neurons, 100 * result.after.gflops / result.before.gflops
    line = f"Plan(ranp-f: {kept} of 31 neurons, {share:.1f} % of the FLOPs)"
    assert repr(result.plan) == line and repr(result) == f"Result({line})"
    graph = ranp.trace(network(), (1, 1, 8, 8, 8))
    assert repr(graph) == "ChannelGraph(31 neurons in 3 layers, 28 removable channel classes)"
    memory = ranp.predict_training_memory(network(), (1, 1, 8, 8, 8), device="cpu")
    assert f"{memory.peak / 2**20:.1f} MiB" in repr(memory)
    for value in (result, result.plan, graph, memory):
        assert "<" in value._repr_html_() and "\n" not in repr(value)
    assert ">3</td><td>16</td>" in graph._repr_html_()
    largest = memory.holders[0]
    held = f">of it, {largest.module}</td><td>{largest.bytes / 2**20:.1f}</td>"
    assert held in memory._repr_html_()  # which may be a kernel's workspace, in no other row


def test_costs_and_shapes_need_no_graph():
    costs = ranp.count(network(), (1, 1, 8, 8, 8))
    assert costs.parameters == sum(p.numel() for p in network().parameters())
    assert ranp.count(network(), (1, 8, 8, 8)) == costs
    batch, sample = (
        ranp.predict_training_memory(network(), shape, device="cuda")
        for shape in [(1, 1, 8, 8, 8), (1, 8, 8, 8)]
    )
    assert batch.peak == sample.peak
    fitted = [
        ranp.fit(network(), batches(), F.cross_entropy, flops="100%", input=shape, device="cpu")
        for shape in [(1, 8, 8, 8), (2, 1, 8, 8, 8)]
    ]
    assert fitted[0].step == fitted[1].step
    alone = {"method": "thin", "flops": "100%", "device": "cpu"}
    assert ranp.fit(network(), input=(3, 1, 8, 8, 8), **alone).step.shape == (3, 1, 8, 8, 8)
    assert ranp.fit(network(), input=(1, 8, 8, 8), batch=3, **alone).step.batch == 3
    with pytest.raises(ranp.UsageError, match="batch of 2, got 3,1,8,8,8; give 1,8,8,8"):
        ranp.fit(network(), input=(3, 1, 8, 8, 8), batch=2, **alone)


class Unsqueezed(nn.Module):
    """Takes batches without channels: what looks like a sample is a batch."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return self.inner(x.unsqueeze(1))


def test_a_shape_is_read_as_the_network_reads_it(caplog):
    assert (
        ranp.count(Unsqueezed(), (1, 8, 8, 8)).gflops
        == ranp.count(network(), (1, 1, 8, 8, 8)).gflops
    )
    assert not caplog.records
    ranp.count(Unsqueezed(), (8, 8, 8))
    assert "8,8,8 is taken as one sample" in caplog.text


@pytest.mark.parametrize("run", [ranp.prune, ranp.fit, ranp.score])
def test_an_empty_loader_is_called_empty(run):
    how = {} if run is ranp.score else {"flops": "50%"}
    with pytest.raises(ranp.UsageError, match="loader is empty"):
        run(network(), [], F.cross_entropy, **how)


def test_batches_of_other_forms_give_the_same_scores():
    pairs = batches()
    reference = ranp.score(network(), pairs, F.cross_entropy).average("mpmg")
    for form in (
        [{"x": x, "y": y} for x, y in pairs],
        [{"image": x, "label": y, "meta": "kept as it is"} for x, y in pairs],
        [[x, y] for x, y in pairs],
    ):
        found = ranp.score(network(), form, F.cross_entropy).average("mpmg")
        assert all(np.array_equal(found[name], reference[name]) for name in reference)
    own = ranp.score(
        network(),
        [("ignored", x, y) for x, y in pairs],
        forward=lambda model, batch: F.cross_entropy(model(batch[1]), batch[2]),
    ).average("mpmg")
    assert all(np.array_equal(own[name], reference[name]) for name in reference)


def test_an_iterator_loses_no_batch():
    reference = ranp.score(network(), batches(), F.cross_entropy)
    found = ranp.score(network(), iter(batches()), F.cross_entropy)
    assert found.batches == reference.batches == 6
    assert all(
        np.array_equal(found.average("mpmg")[name], values)
        for name, values in reference.average("mpmg").items()
    )


def test_plan_and_prune_agree_and_scores_serve_again(tmp_path):
    model = network()
    pruned = ranp.prune(model, batches(), F.cross_entropy, sparsity=0.4)
    assert pruned.scores is not None
    pruned.scores.save(tmp_path / "scores.safetensors")
    scores = ranp.Scores.load(tmp_path / "scores.safetensors")
    graph = ranp.trace(model, (1, 1, 8, 8, 8))
    again = ranp.plan(model, scores, sparsity=0.4, graph=graph)
    assert again.layers == pruned.plan.layers
    other = ranp.plan(model, scores, sparsity=0.6, method="weighted", graph=graph)
    assert sum(len(layer.kept) for layer in other.layers.values()) < sum(
        len(layer.kept) for layer in again.layers.values()
    )


def test_a_saved_result_has_all_that_is_needed_later(tmp_path):
    result = ranp.prune(network(), batches(), F.cross_entropy, sparsity=0.5)
    assert result.save(tmp_path / "slim", data="six batches") == tmp_path / "slim"
    assert ranp.Plan.load(tmp_path / "slim" / "plan.json") == result.plan
    again = ranp.Plan.load(tmp_path / "slim" / "plan.json").apply(network())
    ranp.load_weights(again, tmp_path / "slim" / "weights.safetensors")
    x = batches()[0][0]
    assert torch.equal(again.eval()(x), result.model.eval()(x))
    scores = ranp.Scores.load(tmp_path / "slim" / "scores.safetensors")
    assert ranp.plan(network(), scores, sparsity=0.5, example_input=x[:1]) == result.plan
    html = write_report(tmp_path / "slim").read_text()
    assert "six batches" in html and 'type="range"' in html


def test_search_takes_what_plan_takes():
    model = network()
    graph = ranp.trace(model, (1, 1, 8, 8, 8))
    scores = ranp.score(model, batches(), F.cross_entropy, graph=graph)
    for options in ({"floor": 2}, {"multiple": 4}):
        largest = ranp.search(model, scores, graph=graph, **options)
        kept = ranp.plan(model, scores, sparsity=largest, graph=graph, **options).layers.values()
        assert min(len(layer.kept) for layer in kept) >= 1
        assert largest >= ranp.search(model, scores, graph=graph)
    assert ranp.search(model, scores, graph=graph, floor=2) > 0.999  # no layer is ever emptied


def test_search_is_tight():
    model, graph = network(), ranp.trace(network(), (1, 1, 8, 8, 8))
    scores = ranp.score(model, batches(), F.cross_entropy, graph=graph)
    largest = ranp.search(model, scores, graph=graph)
    ranp.plan(model, scores, sparsity=largest, graph=graph)
    with pytest.raises(ranp.InfeasibleError, match=f"{largest:.4f}"):
        ranp.plan(model, scores, sparsity=largest + 1e-4, graph=graph)


def test_pruned_small_trained_large():
    """Costs are counted at the size of training, whatever the size of scoring."""
    result = ranp.prune(
        network(), batches(size=8), F.cross_entropy, sparsity=0.5, example_input=(1, 1, 16, 16, 16)
    )
    small = ranp.prune(network(), batches(size=8), F.cross_entropy, sparsity=0.5)
    assert result.before.gflops == pytest.approx(8 * small.before.gflops)


@pytest.mark.parametrize(
    "method", [n for n, each in ranp.METHODS.items() if not each.selection.of_weights]
)
def test_every_method_prunes(method):
    result = ranp.prune(
        network(), batches(2), F.cross_entropy, sparsity=0.3, method=method, floor=1
    )
    assert result.after.gflops < result.before.gflops
    result.model(batches(1)[0][0])


def test_methods_without_data_need_none():
    result = ranp.prune(network(), sparsity=0.5, method="layerwise", example_input=(1, 1, 8, 8, 8))
    assert [len(layer.kept) for layer in result.plan.layers.values()] == [6, 8, 3]
    assert result.scores is None


@pytest.mark.parametrize("method", ["magnitude", "synflow"])
def test_methods_that_look_at_weights_alone(method):
    result = ranp.prune(
        network(), sparsity=0.3, method=method, floor=1, example_input=(1, 1, 8, 8, 8)
    )
    assert result.scores is not None
    assert result.scores.batches == 0
    assert result.after.gflops < result.before.gflops


def test_batches_auto_says_how_many_it_took():
    loader = batches(40)
    result = ranp.prune(network(), loader, F.cross_entropy, sparsity=0.5, batches="auto")
    assert result.scores is not None
    assert result.plan.settings["scoring"]["batches"] == result.scores.batches
    assert 4 <= result.scores.batches <= 40
    assert 0 < result.scores.settings["agreement"] <= 1


def test_data_free_methods_are_scored_without_a_loader():
    scores = ranp.score(network(), methods="magnitude", example_input=(1, 1, 8, 8, 8))
    assert scores.batches == 0
    weight = network()[3].weight.abs().sum((1, 2, 3, 4))
    drawn = ranp.score(
        network(), methods=["magnitude"], example_input=(1, 1, 8, 8, 8), weights="given"
    )
    torch.testing.assert_close(drawn.constants["magnitude"]["3"], weight.double())
    with pytest.raises(ranp.UsageError, match="give a loader"):
        ranp.score(network(), methods=["magnitude", "ranp-f"], example_input=(1, 1, 8, 8, 8))


def test_scores_have_a_short_form():
    result = ranp.prune(network(), batches(2), F.cross_entropy, sparsity=0.5)
    assert repr(result.scores).startswith(
        "Scores(2 batches, 3 layers, 31 neurons: magnitude, mnmg, mpmg; weights='fresh', seed=0"
    )


def test_integer_inputs_are_traced_as_such():
    model = nn.Sequential(
        nn.Embedding(5, 8), nn.Flatten(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 2)
    )
    data = [(torch.randint(0, 5, (4, 3)), torch.randint(0, 2, (4,))) for _ in range(2)]
    result = ranp.prune(model, data, F.cross_entropy, sparsity=0.5, method="weighted", floor=1)
    assert result.model[2].out_features < 16


def test_a_graph_that_is_given_must_protect_what_is_asked_for():
    model, example = network(), (1, 1, 8, 8, 8)
    scores = ranp.score(model, batches(2), F.cross_entropy)
    graph = ranp.trace(model, example)
    for function in (ranp.search, lambda *args, **kwargs: ranp.plan(*args, sparsity=0.4, **kwargs)):
        with pytest.raises(ranp.UsageError, match="does not protect '3'"):
            function(model, scores, graph=graph, protect=["3"])
        with pytest.raises(ranp.UsageError, match="no layer is called '9'"):
            function(model, scores, graph=graph, protect=["9"])
    graph = ranp.trace(model, example, protect=["3"])
    plan = ranp.plan(model, scores, sparsity=0.2, graph=graph, protect=["3"])
    assert plan.apply(network())[3].out_channels == 16


def test_modules_without_shapes_are_named():
    model = nn.Sequential(nn.LazyConv3d(4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 2, 1))
    with pytest.raises(ranp.UsageError, match=r"'0\.weight' has no shape yet; run the model once"):
        ranp.prune(model, batches(1), F.cross_entropy, sparsity=0.5)


def test_a_network_without_layers_is_refused():
    with pytest.raises(ranp.UsageError, match="no convolution or linear layer"):
        ranp.score(nn.Sequential(nn.BatchNorm3d(1)), batches(1), F.cross_entropy)


@pytest.mark.parametrize(
    "arguments",
    [
        {"sparsity": 1.5},
        {"sparsity": "0.5"},
        {"lam": float("inf")},
        {"resource": "watts"},
        {"resource": {"0": 1.0}},
        {"coupling": "most"},
        {"floor": -1},
        {"init": "zeros"},
        {"method": "rapn-f"},
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_scored(arguments):
    def never(model, batch):
        raise AssertionError("a batch was scored")

    with pytest.raises(ranp.UsageError):
        ranp.prune(network(), batches(1), forward=never, **{"sparsity": 0.5, **arguments})


def test_only_the_users_forward_knows_its_batches():
    triples = [(x, y, 0.5) for x, y in batches(1)]
    with pytest.raises(ranp.UsageError, match="must call the model to tell what it takes, got a"):
        ranp.prune(network(), triples, forward=lambda model, batch: 0, sparsity=0.5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batches": 2.5}, "batches must be a positive integer, got 2.5"),
        ({"batches": "many"}, "batches must be a positive integer, got 'many'"),
        ({"seed": "a"}, "seed must be between 0 and"),
        ({"method": 3}, "method must be a name"),
        ({"lam": "a"}, "lambda must be finite"),
        ({"floor": 1.5}, "floor must not be negative, and be whole, got 1.5"),
        ({"multiple": 2.5}, "multiple must be at least 1, and be whole, got 2.5"),
        ({"protect": 3}, "protect must be a list of layers' names, got 3"),
        ({"protect": [3]}, "protect must be a list of layers' names, got \\[3\\]"),
        ({"protect": "head"}, "protect must be a list of layers' names, got 'head'"),
        ({"seed": -1}, "seed must be between 0 and"),
        ({"loader": []}, "loader is empty"),
        ({"loader": [], "example_input": (1, 1, 8, 8, 8)}, "no batches"),
        ({"method": "rapn-f"}, "Did you mean 'ranp-f'"),
        ({"method": "RANP-F"}, "Did you mean 'ranp-f'"),
        ({"method": "ranp"}, "Did you mean 'ranp-f', 'ranp-l', 'ranp-m' or 'ranp-p'"),
        ({"sparsity": 1.5}, "1.5"),
        ({"loss": None}, "give a loss"),
        ({"loader": [torch.rand(1, 1, 8, 8, 8)]}, "expected a pair"),
        ({"loader": [{"a": 1}]}, "keys 'a'"),
        ({"lam": -1.0}, "negative"),
        ({"init": "zeros"}, "init must be one of"),
        ({"weights": "old"}, "weights must be"),
        ({"example_input": "text"}, "example input"),
    ],
)
def test_wrong_arguments(arguments, words):
    given = {"loader": batches(1), "loss": F.cross_entropy, "sparsity": 0.5, **arguments}
    with pytest.raises(ranp.UsageError, match=words):
        ranp.prune(network(), **given)


def test_the_public_names_are_there():
    for name in ranp.__all__:
        assert getattr(ranp, name) is not None
    assert set(ranp.__all__) <= set(dir(ranp))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ranp.nothing
