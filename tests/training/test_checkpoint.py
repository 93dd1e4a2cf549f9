from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from ranp.errors import IntegrityError, UsageError
from ranp.files import load_tensors
from ranp.training.checkpoint import Progress, load_checkpoint, save_checkpoint


def network(width: int = 4, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv3d(1, width, 3), nn.BatchNorm3d(width), nn.Conv3d(width, 1, 1))


def trained(optimizer_class, **options):
    model = network()
    optimizer = optimizer_class(model.parameters(), lr=0.01, **options)
    for _ in range(3):
        model(torch.randn(2, 1, 4, 4, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


PROGRESS = Progress(
    2, 5, 1.25, 60.5, 0.75, 1, [{"epoch": 1, "loss": 0.1, "metrics": {"dice": 0.75}}]
)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {}),
    ],
)
def test_everything_comes_back(tmp_path, kind, options):
    model, optimizer = trained(kind, **options)
    save_checkpoint(tmp_path / "c", model, optimizer, PROGRESS, {"scale": 2.0})
    other = network(seed=1).to(memory_format=torch.channels_last_3d)
    other_optimizer = kind(other.parameters(), lr=0.5, **options)
    progress, scaler = load_checkpoint(tmp_path / "c", other, other_optimizer)
    assert progress == PROGRESS
    assert scaler == {"scale": 2.0}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    mine, theirs = optimizer.state_dict()["state"], other_optimizer.state_dict()["state"]
    assert mine.keys() == theirs.keys()
    for index, state in mine.items():
        for key, value in state.items():
            assert torch.equal(value, theirs[index][key]), (index, key)
    # The rate belongs to the schedule, not to the checkpoint.
    assert other_optimizer.param_groups[0]["lr"] == 0.5


def test_damaged_checkpoints_are_refused(tmp_path):
    model, optimizer = trained(torch.optim.Adam)
    path = tmp_path / "c"
    save_checkpoint(path, model, optimizer, PROGRESS, {})
    whole = path.read_bytes()
    random_numbers = random.Random(0)
    for _ in range(200):
        content = bytearray(whole)
        content[random_numbers.randrange(len(content))] ^= 1 << random_numbers.randrange(8)
        path.write_bytes(content)
        with pytest.raises((IntegrityError, UsageError)):
            load_checkpoint(path, network(), None)


def test_checkpoints_of_other_networks_are_refused_and_change_nothing(tmp_path):
    model, optimizer = trained(torch.optim.Adam)
    save_checkpoint(tmp_path / "c", model, optimizer, PROGRESS, {})
    wider = network(8)
    before = {name: tensor.clone() for name, tensor in wider.state_dict().items()}
    with pytest.raises(IntegrityError, match=r"'0.weight' is \(4, 1, 3, 3, 3\) in the file"):
        load_checkpoint(tmp_path / "c", wider)
    assert all(torch.equal(before[n], t) for n, t in wider.state_dict().items())


def save_forever(path: Path, ready: int) -> None:
    """Saves checkpoints whose weights and position hold the same number."""
    model = nn.Linear(300, 300)
    optimizer = torch.optim.Adam(model.parameters())
    for number in itertools.count():
        with torch.no_grad():
            model.weight.fill_(number)
        save_checkpoint(path, model, optimizer, Progress(epoch=number), {})
        if number == 0:
            os.write(ready, b"!")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_no_checkpoint_is_torn_by_kills_while_saving(tmp_path, kills):
    # Imports what saving needs, so that the children save from their first moment on.
    save_checkpoint(tmp_path / "first", *trained(torch.optim.Adam), PROGRESS, {})
    path = tmp_path / "c"
    random_numbers = random.Random(0)
    for _ in range(kills):
        wait, ready = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                save_forever(path, ready)
            finally:
                os._exit(1)
        assert os.read(wait, 1) == b"!"
        time.sleep(random_numbers.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        os.close(wait)
        os.close(ready)
        tensors, metadata = load_tensors(path, "checkpoint")
        number = int(tensors["model/weight"][0, 0])
        assert f'"epoch":{number},' in metadata["state"]
