from __future__ import annotations

import math
import statistics
from types import SimpleNamespace

import pytest
import torch

import ranp
from ranp.errors import UsageError
from ranp.schemas import averaged
from ranp.training.job import Job
from ranp.training.listeners import Listener
from ranp.training.loop import Diverged, Trainer
from ranp.training.run import train
from tests.training.networks import Normed, Plain
from tests.training.test_resume import Recorder, assert_same_weights, weights


def test_it_learns(tmp_path, crops, tiny):
    listener = Recorder()
    config = tiny(epochs=8, optimizer__lr=0.03, validate_every=8)
    train(Job(config, tmp_path / "run", crops), listener=listener)
    first, last = listener.steps[:4], listener.steps[-4:]
    assert sum(s.loss for s in last) < 0.7 * sum(s.loss for s in first)


def test_accumulated_passes_are_one_step_of_the_whole_batch(tmp_path, crops, tiny):
    common = {"epochs": 1, "network__options": {}, "optimizer__name": "sgd"}
    for name, changes in (("one", {"batch": 4}), ("two", {"batch": 2, "accumulate": 2})):
        job = Job(tiny(**common, **changes), tmp_path / name, crops, factory=Plain)
        train(job)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in (name for name in one if name.startswith("model/")):
        torch.testing.assert_close(one[name], two[name], rtol=1e-5, atol=1e-6)


def test_recomputation_changes_memory_alone(tmp_path, crops, tiny):
    train(Job(tiny(epochs=1, network__options={}), tmp_path / "a", crops, factory=Plain))
    config = tiny(epochs=1, network__options={}, recompute=True)
    train(Job(config, tmp_path / "b", crops, factory=Plain))
    assert_same_weights(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"channels_last": True},
        {"clip": 0.1, "optimizer__name": "adam", "optimizer__amsgrad": True},
    ],
    ids=["bf16", "channels_last", "clip and amsgrad"],
)
def test_options_train_and_resume(tmp_path, crops, tiny, changes):
    from tests.training.test_resume import Crash, CrashAt

    config = tiny(epochs=1, network__options={}, **changes)
    train(Job(config, tmp_path / "whole", crops, factory=Normed))
    job = Job(config, tmp_path / "broken", crops, factory=Normed)
    with pytest.raises(Crash):
        train(job, listener=CrashAt(2))
    train(job, resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "broken")


def test_an_optimized_network_learns_the_same(tmp_path, crops, tiny, monkeypatch):
    monkeypatch.setenv("RANP_CACHE", str(tmp_path / "cache"))
    asked = []

    def optimized(model, shape, mode, **options):
        asked.append((shape, mode))
        return ranp.optimize(model, shape, mode, **options)

    monkeypatch.setattr("ranp.training.loop.optimize", optimized)
    for name in ("plain", "fast"):
        config = tiny(epochs=1, optimize=name == "fast", channels_last=True, optimizer__name="sgd")
        record = train(Job(config, tmp_path / name, crops))
        assert (record["optimization"] is None) == (name == "plain")
    assert record["optimization"]["speedup"] >= 1.0
    size = config.data.size
    assert asked == [((config.batch, 1, size, size, size), "train")]
    plain, fast = weights(tmp_path / "plain"), weights(tmp_path / "fast")
    assert list(plain) == list(fast)
    for name in (name for name in plain if name.startswith("model/")):
        torch.testing.assert_close(fast[name], plain[name], rtol=1e-3, atol=1e-4)


def test_what_cannot_be_optimized_is_refused(tiny):
    for other in ({"compile": True}, {"precision": "bf16"}):
        with pytest.raises(UsageError, match="optimize is for precision 32 without compile"):
            tiny(optimize=True, **other)


def test_only_a_cpu_is_optimized_for(tiny, tmp_path):
    fabric = SimpleNamespace(device=torch.device("cuda"))
    with pytest.raises(UsageError, match="this run trains on cuda: leave it out"):
        Trainer(fabric, None, None, tiny(optimize=True), None, None, tmp_path)


def test_clipping_bounds_the_step(tmp_path, crops, tiny):
    common = {"epochs": 1, "batch": 8, "network__options": {}, "data__validation_size": 24}
    config = tiny(
        **common,
        clip=1e-3,
        optimizer={"name": "sgd", "lr": 1.0, "momentum": 0.0},
        schedule={"name": "constant"},
    )
    torch.manual_seed(0)
    train(Job(config, tmp_path / "run", crops, factory=Plain))
    from ranp.training.preparation import fresh_network

    before = dict(fresh_network(Plain(), None, transfer=False, seed=0).named_parameters())
    moved = [weights(tmp_path / "run")[f"model/{n}"] - p for n, p in before.items()]
    norm = math.sqrt(sum(float(m.detach().square().sum()) for m in moved))
    assert norm == pytest.approx(1e-3, rel=1e-3)  # rate 1, one step: the clipped gradient itself


def test_a_loss_that_is_no_number_names_the_batch(tmp_path, crops, tiny):
    class Broken(Plain):
        def forward(self, x):
            return super().forward(x) * float("nan")

    job = Job(tiny(network__options={}), tmp_path / "run", crops, factory=Broken)
    with pytest.raises(
        Diverged, match=r"loss is nan in epoch 1, batch 1 \(hippocampus_\d+, hippocampus_\d+\)"
    ) as error:
        train(job)
    assert error.value.exit_code == 1


def test_a_network_that_fails_is_named_with_line_and_shape(tmp_path, crops, tiny):
    class Broken(Plain):
        def forward(self, x):
            if len(x) == 2:
                raise ValueError("too small")
            return super().forward(x)

    job = Job(tiny(network__options={}), tmp_path / "run", crops, factory=Broken)
    reason = r"the network fails: ValueError: too small \(test_loop.py:\d+\); it was given 2x1x24"
    with pytest.raises(UsageError, match=reason):
        train(job)


def test_a_loss_that_is_no_scalar_is_refused(tmp_path, crops, tiny, monkeypatch):
    from ranp.datasets.tasks import Segmentation

    monkeypatch.setattr(Segmentation, "loss", lambda self, output, batch: output.mean(1))
    with pytest.raises(UsageError, match=r"must be a scalar tensor, got \(2, 24, 24, 24\)"):
        train(Job(tiny(), tmp_path / "run", crops))


def test_means_and_deviations_are_of_the_last_five_epochs():
    history = [{"metrics": {"dice": value}} for value in (0.0, 0.0, 0.5, 0.6, 0.7, 0.9, 0.8)]
    values = [0.5, 0.6, 0.7, 0.9, 0.8]
    assert averaged(history) == {
        "dice": {
            "mean": pytest.approx(0.7),
            "std": pytest.approx(statistics.stdev(values)),
            "last": 0.8,
        }
    }


def test_the_last_five_epochs_are_always_validated(tmp_path, crops, tiny):
    class Lines(Listener):
        def __init__(self) -> None:
            self.validated: list[int] = []

        def on_epoch_end(self, line) -> None:
            if "metrics" in line:
                self.validated.append(line["epoch"])

    lines = Lines()
    train(Job(tiny(epochs=8, validate_every=2), tmp_path / "run", crops), listener=lines)
    assert lines.validated == [2, 4, 5, 6, 7, 8]
