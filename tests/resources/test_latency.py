"""Measured latency: what is timed, and that measuring leaves no trace."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

import ranp
from ranp.errors import UsageError
from ranp.graph import build_graph
from ranp.pruning import Choice, Chooser
from ranp.resources.latency import latency_table, measure_latency, measure_ratio
from ranp.resources.measuring import Timing, time_in_turns
from ranp.resources.timing_cache import TimingCache


def small_network():
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.Dropout(0.5), nn.Conv3d(4, 2, 1)
    )


@pytest.mark.parametrize("mode", ["train", "inference"])
def test_measuring_leaves_the_network_as_it_was(mode):
    torch.manual_seed(0)
    model = small_network().train()
    model(torch.randn(1, 1, 4, 4, 4)).mean().backward()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [p.grad for p in model.parameters()]
    random_state = torch.get_rng_state()

    took = measure_latency({"it": model}, (1, 1, 4, 4, 4), mode=mode, repetitions=2)
    assert took["it"].fastest > 0

    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_train_steps_run_in_train_mode_with_gradients_and_inference_in_neither():
    seen = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            seen.append((self.training, torch.is_grad_enabled()))
            return x * self.weight

    measure_latency({"it": Spy()}, (1, 2), mode="train", repetitions=1)
    measure_latency({"it": Spy()}, (1, 2), mode="inference", repetitions=1)
    assert seen == [(True, True)] * 2 + [(False, False)] * 2


def test_times_are_those_of_the_clock():
    ticks = iter([0, 5, 10, 11, 20, 23])  # durations 5, 1, 3
    clocked = measure_latency(
        {"it": nn.Linear(2, 2)}, (1, 2), repetitions=3, clock=lambda: next(ticks)
    )
    assert clocked["it"].median == 3 and clocked["it"].fastest == 1


def test_a_ratio_is_measured_until_it_is_known_well_enough(monkeypatch):
    def measure(models, shape, *, mode, repetitions, warm_up):
        assert mode == "train" and repetitions == 1 and warm_up == (not calls)
        calls.append(2.0 if len(calls) % 2 else 4.0)
        return {"this": Timing((calls[-1],)), "reference": Timing((1.0,))}

    calls = []
    monkeypatch.setattr("ranp.resources.latency.measure_latency", measure)
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    ratio = measure_ratio(one, other, (1, 2), enough=lambda ratio: len(calls) >= 6)
    assert ratio.value == pytest.approx(8**0.5) and len(calls) == 6
    # Six turns, log 2 and log 4 by turns, with n - 1 = 5: sqrt(6 / 5) log 2 / 2 / sqrt(6).
    assert ratio.error == pytest.approx(math.log(2) / 2 / 5**0.5)
    for options, turns in (({"enough": lambda ratio: True}, 3), ({"most_seconds": 0.0}, 3)):
        calls.clear()
        measure_ratio(one, other, (1, 2), **{"enough": lambda ratio: False, **options})
        assert len(calls) == turns


def test_actions_take_turns_after_a_warm_up():
    done = []
    ticks = itertools.count()
    actions = {name: lambda name=name: done.append(name) for name in "ab"}
    timings = time_in_turns(actions, 3, clock=lambda: next(ticks))
    assert "".join(done) == "ab" + "ababab"
    assert timings["a"].seconds == (1, 1, 1)


def test_spread_is_the_median_deviation_relative_to_the_median():
    timing = Timing((1.0, 2.0, 2.0, 3.0, 10.0))
    assert (timing.median, timing.fastest, timing.spread) == (2.0, 1.0, 0.5)


def test_unknown_mode_is_refused():
    with pytest.raises(
        UsageError, match="mode must be one of 'train', 'inference', got 'training'"
    ):
        measure_latency({"it": nn.Linear(2, 2)}, (1, 2), mode="training")


def test_table_holds_every_layer_at_its_real_shape(tmp_path, monkeypatch):
    seen = []

    def run_once(actions, repetitions):
        for act in actions.values():
            act()
        return {name: Timing((float(len(seen)),)) for name in actions}

    def note(module, inputs):
        seen.append((type(module).__name__, tuple(inputs[0].shape), module.training))

    monkeypatch.setattr("ranp.resources.latency.time_in_turns", run_once)
    model = nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 4, 3), nn.Flatten(), nn.Linear(32, 2)
    )
    graph = build_graph(model, (2, 1, 4, 4, 4))
    for module in model:
        module.register_forward_pre_hook(note)
    cache = TimingCache(tmp_path)
    table = latency_table(model, graph, cache=cache)
    assert seen == [
        ("Conv3d", (2, 1, 4, 4, 4), True),
        ("Conv3d", (2, 4, 4, 4, 4), True),
        ("Linear", (2, 32), True),
    ]
    assert table == {"0": 1.0, "2": 2.0, "4": 3.0}
    assert latency_table(model, graph, cache=cache) == table and len(seen) == 3  # kept
    latency_table(model, graph, mode="inference", cache=cache)
    assert [training for _, _, training in seen[3:]] == [False] * 3


def test_layers_are_really_run(tmp_path):
    calls = []

    class Spy(nn.Conv3d):
        def forward(self, x):
            calls.append((self.training, x.requires_grad))
            return super().forward(x)

    model = nn.Sequential(Spy(1, 2, 1))
    graph = build_graph(model, (1, 1, 4, 4, 4))
    calls.clear()
    assert latency_table(model, graph, cache=TimingCache(tmp_path))["0"] > 0
    assert set(calls) == {(True, True)}


def test_ranp_l_reweights_by_the_table(monkeypatch):
    model = nn.Sequential(nn.Conv3d(1, 8, 1), nn.Conv3d(8, 8, 1), nn.Conv3d(8, 2, 1))
    graph = build_graph(model, (1, 1, 4, 4, 4))
    costs = {"0": 5.0, "1": 0.0, "2": 1.0}
    monkeypatch.setattr("ranp.resources.budgets.latency_table", lambda *args: costs)
    loader = [(torch.rand(1, 1, 4, 4, 4), torch.randint(0, 2, (1, 4, 4, 4)))]
    scores = ranp.score(model, loader, nn.functional.cross_entropy, graph=graph)
    measured = Chooser(model, graph, Choice.make("ranp-l"), scores)
    given = Chooser(model, graph, Choice.make("weighted", resource=costs), scores)
    for name, importance in measured.importance.items():
        assert (importance == given.importance[name]).all()


def test_damaged_entries_are_measured_again(tmp_path):
    cache = TimingCache(tmp_path)
    assert cache.get({"a": 1}, lambda: {"x": 2.0}) == {"x": 2.0}
    (path,) = cache.directory.iterdir()
    path.write_text(path.read_text().replace("2.0", "7.0"))
    assert cache.get({"a": 1}, lambda: {"x": 3.0}) == {"x": 3.0}
    assert cache.get({"a": 1}, lambda: {"x": 4.0}) == {"x": 3.0}
    assert cache.get({"a": 2}, lambda: {"x": 5.0}) == {"x": 5.0}


def test_what_is_measured_on_a_busy_machine_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("ranp.resources.timing_cache.others_running", lambda: 1.0)
    cache = TimingCache(tmp_path)
    assert cache.get({"a": 1}, lambda: {"x": 2.0}) == {"x": 2.0}
    assert cache.get({"a": 1}, lambda: {"x": 3.0}) == {"x": 3.0}
    assert not cache.directory.exists()


def test_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("RANP_CACHE", str(tmp_path / "here"))
    assert TimingCache().directory == tmp_path / "here" / "timings"
    monkeypatch.delenv("RANP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert TimingCache().directory == tmp_path / "ranp" / "timings"
