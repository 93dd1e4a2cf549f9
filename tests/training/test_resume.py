from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from ranp.errors import IntegrityError
from ranp.files import load_tensors, save_tensors
from ranp.schemas import read_epochs
from ranp.signals import Interrupted
from ranp.training.config import Config
from ranp.training.job import Job
from ranp.training.listeners import Listener, Step
from ranp.training.run import train
from tests.training.networks import Normed


class Recorder(Listener):
    def __init__(self) -> None:
        self.steps: list[Step] = []

    def on_step(self, step: Step) -> None:
        self.steps.append(step)


class Crash(Exception):
    pass


class CrashAt(Recorder):
    """Fails after some steps, before that step is saved: as a kill would."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def on_step(self, step: Step) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash
        super().on_step(step)


class SignalAt(Recorder):
    def __init__(self, number: int, *steps: int) -> None:
        super().__init__()
        self.number, self.at = number, steps

    def on_step(self, step: Step) -> None:
        super().on_step(step)
        if len(self.steps) in self.at:
            os.kill(os.getpid(), self.number)


def weights(directory: Path) -> dict[str, torch.Tensor]:
    tensors, _ = load_tensors(directory / "last.safetensors", "checkpoint")
    return tensors


def assert_same_weights(one: Path, other: Path) -> None:
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


@pytest.fixture
def tiny(tiny: Callable[..., Config]) -> Callable[..., Config]:
    """Makes the configuration of a network with statistics and random numbers in every step."""
    return partial(tiny, network__options={})


def make_job(config: Config, directory: Path, data: Path) -> Job:
    return Job(config, directory, data, factory=Normed)


def lines(directory: Path) -> list[dict[str, object]]:
    timed = ("seconds", "samples_per_second")
    return [
        {key: value for key, value in line.items() if key not in timed}
        for line in read_epochs(directory)
    ]


def test_ten_crashes_at_random_moments_change_nothing(tmp_path, crops, tiny):
    config = tiny(epochs=4)
    whole = Recorder()
    train(make_job(config, tmp_path / "whole", crops), listener=whole)

    random_numbers = random.Random(0)
    job = make_job(config, tmp_path / "broken", crops)
    for _ in range(10):
        with pytest.raises(Crash):
            train(job, resume=True, listener=CrashAt(random_numbers.randint(0, 2)))
    rest = Recorder()
    record = train(job, resume=True, listener=rest)

    assert_same_weights(tmp_path / "whole", tmp_path / "broken")
    assert lines(tmp_path / "whole") == lines(tmp_path / "broken")
    assert rest.steps[-1].loss == whole.steps[-1].loss
    assert record["epochs"] == 4


def test_no_sample_is_repeated_or_skipped(tmp_path, crops, tiny):
    config = tiny(epochs=2, accumulate=3)  # 4 batches: a step of 3 and a step of 1
    whole = Recorder()
    train(make_job(config, tmp_path / "whole", crops), listener=whole)
    job, seen = make_job(config, tmp_path / "broken", crops), []
    for _ in range(2):
        listener = SignalAt(signal.SIGTERM, 1)
        with pytest.raises(Interrupted):
            train(job, resume=True, listener=listener)
        # The signal is noted in the first step's report, and obeyed after the second.
        seen += listener.steps
    last = Recorder()
    train(job, resume=True, listener=last)
    seen += last.steps
    plain = [(s.epoch, s.batch, s.loss, s.ids) for s in whole.steps]
    assert [(s.epoch, s.batch, s.loss, s.ids) for s in seen] == plain
    ids = [case for step in whole.steps if step.epoch == 1 for case in step.ids]
    assert len(ids) == len(set(ids)) == 8
    assert_same_weights(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_after_a_checkpoint(tmp_path, crops, tiny, capfd, number, code):
    config = tiny(checkpoint_minutes=1000)
    job, listener = make_job(config, tmp_path / "run", crops), SignalAt(number, 2)
    with pytest.raises(Interrupted, match=r"epoch 1 after batch 3; .*--resume auto") as stopped:
        train(job, listener=listener)
    assert stopped.value.exit_code == code
    says_how_to_stop_at_once = "Ctrl-C again stops at once" in capfd.readouterr().err
    assert says_how_to_stop_at_once == (number == signal.SIGINT)
    assert signal.getsignal(number) is not None
    train(make_job(config, tmp_path / "whole", crops))
    train(job, resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "run")


def test_a_second_interrupt_ends_at_once(tmp_path, crops, tiny):
    class Twice(Recorder):
        def on_step(self, step: Step) -> None:
            super().on_step(step)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)

    listener = Twice()
    with pytest.raises(KeyboardInterrupt):
        train(make_job(tiny(), tmp_path / "run", crops), listener=listener)
    assert len(listener.steps) == 1


def test_a_signal_in_validation_does_not_repeat_the_epoch(tmp_path, crops, tiny, monkeypatch):
    from ranp.datasets.tasks import Segmentation

    measure, calls = Segmentation.measure, []

    def stop_in_measure(self, output, batch):
        calls.append(1)
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return measure(self, output, batch)

    config = tiny(batch=1, checkpoint_minutes=1000)  # two validation batches
    train(make_job(config, tmp_path / "whole", crops))
    monkeypatch.setattr(Segmentation, "measure", stop_in_measure)
    job = make_job(config, tmp_path / "run", crops)
    with pytest.raises(Interrupted, match="epoch 1 after batch 8"):
        train(job)
    listener = Recorder()
    train(job, resume=True, listener=listener)
    assert {step.epoch for step in listener.steps} == {2}
    assert_same_weights(tmp_path / "whole", tmp_path / "run")


def test_two_workers_change_nothing(tmp_path, crops, tiny):
    train(make_job(tiny(), tmp_path / "none", crops))
    train(make_job(tiny(data__workers=2), tmp_path / "two", crops))
    assert_same_weights(tmp_path / "none", tmp_path / "two")


def test_a_complete_run_is_not_run_again(tmp_path, crops, tiny):
    job = make_job(tiny(epochs=1), tmp_path / "run", crops)
    record = train(job)
    listener = Recorder()
    assert train(job, resume=True, listener=listener) == record
    assert listener.steps == []


def test_row_35_a_position_behind_the_end_of_its_epoch_is_refused(tmp_path, crops, tiny):
    """Nothing would be trained in that epoch, silently."""
    job, listener = make_job(tiny(), tmp_path / "run", crops), CrashAt(2)
    with pytest.raises(Crash):
        train(job, listener=listener)
    path = tmp_path / "run" / "last.safetensors"
    tensors, metadata = load_tensors(path, "checkpoint")
    state = json.loads(metadata["state"])
    state["progress"]["batch"] = 5
    save_tensors(path, tensors, {**metadata, "state": json.dumps(state)})
    with pytest.raises(IntegrityError, match=r"is 5 batches into an epoch that has 4"):
        train(job, resume=True)
