"""Races with a trainer that has the methods of nnU-Net's, and none of its code."""

from __future__ import annotations

import itertools
import json
import os
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

from ranp.cli import app
from ranp.integrations.nnunet import prune_plans, read_slim_plans
from ranp.integrations.nnunet.racing import TrainerLoop
from tests.integrations.test_nnunet_plans import KWARGS, PATCH, SmallUNet, dataset

__all__ = ["dataset"]
BIAS = 0.125
NOISE = "Using device: cpu"


class InitializedUNet(SmallUNet):
    """Has the function that nnU-Net initializes networks with."""

    @staticmethod
    def initialize(module):
        if isinstance(module, nn.Conv3d):
            nn.init.kaiming_normal_(module.weight)
            nn.init.constant_(module.bias, BIAS)


class Trainer:
    """What nnU-Net's trainer is asked for; every instance is remembered."""

    made: list[Trainer] = []  # noqa: RUF012
    num_epochs, num_iterations_per_epoch, num_val_iterations_per_epoch = 1000, 250, 50

    def __init__(self, plans, configuration, fold, dataset_json, device):
        found = plans["configurations"][configuration]
        self.configuration_manager = SimpleNamespace(
            configuration=found, batch_size=found["batch_size"], patch_size=found["patch_size"]
        )
        self.num_input_channels, self.device, self.current_epoch = 1, device, 0
        self.logged: dict[str, list[float]] = {"mean_fg_dice": [], "train_losses": []}
        self.logger = SimpleNamespace(get_value=lambda key, step: self.logged[key][step])
        self.results = Path(os.environ["nnUNet_results"])  # noqa: SIM112
        self.steps, self.rates, self.first_biases = 0, [], None
        Trainer.made.append(self)

    def initialize(self):
        self.network = InitializedUNet(1, 3, **KWARGS, deep_supervision=True)
        self.optimizer, self.lr_scheduler = self.configure_optimizers()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01)
        share = lambda epoch: 1 - epoch / self.num_epochs  # noqa: E731
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)

    def loss(self, outputs, targets):
        pairs = zip(outputs, targets, strict=True)
        return sum(F.cross_entropy(x, y[:, 0].long()) for x, y in pairs)

    def get_dataloaders(self):
        return self._batches(), self._batches()

    def _batches(self):
        while True:
            x = torch.randn(2, 1, *PATCH)
            y = (x > 0).float() + (x > 1)
            yield {"data": x, "target": [y, y[..., ::2, ::2, ::2]]}

    def on_train_start(self):
        self.dataloader_train, self.dataloader_val = self.get_dataloaders()

    def on_train_epoch_start(self):
        self.rates.append(self.optimizer.param_groups[0]["lr"])

    def train_step(self, batch):
        biases = {n: p for n, p in self.network.named_parameters() if n.endswith("bias")}
        if self.first_biases is None:
            self.first_biases = {
                name: float(p.mean()) for name, p in biases.items() if "up" not in name
            }
        self.steps += 1
        self.optimizer.zero_grad()
        loss = self.loss(self.network(batch["data"]), batch["target"])
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item()}

    def on_train_epoch_end(self, outputs):
        self.logged["train_losses"].append(sum(o["loss"] for o in outputs) / len(outputs))
        self.lr_scheduler.step()

    def on_validation_epoch_start(self):
        self.network.eval()

    def validation_step(self, batch):
        assert not torch.is_grad_enabled()
        found = self.network(batch["data"])[0].argmax(1) == batch["target"][0][:, 0]
        return {"right": float(found.float().mean())}

    def on_validation_epoch_end(self, outputs):
        self.network.train()
        self.logged["mean_fg_dice"].append(sum(o["right"] for o in outputs) / len(outputs))


class NoisyTrainer(Trainer):
    """Prints and warns wherever nnU-Net's own does."""

    def _make_noise(self):
        print(NOISE)
        warnings.warn(NOISE, stacklevel=1)

    def initialize(self):
        self._make_noise()
        super().initialize()

    def get_dataloaders(self):
        self._make_noise()
        return super().get_dataloaders()

    def on_train_start(self):
        self._make_noise()
        super().on_train_start()

    def on_train_epoch_start(self):
        self._make_noise()
        super().on_train_epoch_start()


@pytest.fixture
def trainers(dataset, monkeypatch):
    """An empty list of trainers; the planner, which is nnU-Net's own, says nothing."""
    (dataset / "dataset.json").write_text("{}")
    monkeypatch.setattr("ranp.integrations.nnunet.planner.estimate", lambda *arguments: None)
    Trainer.made = []
    return Trainer.made


def loop(**changes):
    settings = {"epochs": 5, "iterations": 10, **changes}
    return TrainerLoop("Dataset007_Cells", "3d_fullres", "nnUNetPlans", 0, Trainer, **settings)


def nnunet_variables():
    return {name: value for name, value in os.environ.items() if name.startswith("nnUNet")}


def test_a_training_is_nnunets_own_with_another_network(trainers):
    before = nnunet_variables()
    model = InitializedUNet(1, 3, [2, 3], KWARGS["strides"], deep_supervision=True)
    torch.manual_seed(0)
    lines = loop().train(model, 0)
    first = list(itertools.islice(lines, 2))
    (trainer,) = trainers
    assert nnunet_variables() == before  # between check-ins nothing of nnU-Net's is left
    assert trainer.network is model
    assert set(trainer.first_biases.values()) == {BIAS}
    assert trainer.steps == 2 * 10 and trainer.num_val_iterations_per_epoch == 10 // 5
    assert trainer.rates == pytest.approx([0.01, 0.01 * 4 / 5])
    logged = trainer.logged
    expected = zip(logged["mean_fg_dice"], logged["train_losses"], strict=True)
    assert first == [{"dice": dice, "loss": loss} for dice, loss in expected]
    assert trainer.results.is_dir()
    lines.close()
    assert not trainer.results.exists()


def test_other_settings_are_other_trainings():
    names = {loop().name, loop(epochs=6).name, loop(iterations=11).name}
    assert len(names) == 3


def test_the_network_that_won_is_written_and_a_race_goes_on(trainers):
    how = {"method": "race", "candidates": ("thin", "power:0.25", "ranp-f"), "batches": 2}
    limits = {"flops": "40%", "epochs": 10, "iterations": 2, "cost": 1.0}
    told = []
    made = prune_plans(
        7, "3d_fullres", **how, **limits, trainer=Trainer, device="cpu", tell=told.append
    )
    race = made.race
    assert race.winner in ("thin", "power:0.25", "ranp-f") and race.spent <= race.stated <= 1
    assert any(line.startswith("Race of 3 candidates: at most") for line in told)
    written = read_slim_plans(made.path)["3d_fullres"]
    assert written.plan == race.plan.to_dict() == made.result.plan.to_dict()
    costs = made.result.plan.costs
    assert 0.2 < costs["slim"]["gflops"] / costs["full"]["gflops"] <= 0.4
    assert written.memory["slim"] < written.memory["full"]
    folder = made.report.parent / "race"
    assert json.loads((folder / "race.json").read_text())["winner"] == race.winner
    assert (folder / "race.html").exists()
    steps = sum(trainer.steps for trainer in trainers)
    assert steps == 2 * round(race.spent * 10)  # iterations of an epoch, epochs

    again = prune_plans(7, "3d_fullres", **how, **limits, trainer=Trainer, device="cpu")
    assert sum(trainer.steps for trainer in trainers) == steps
    assert again.race.to_dict() == race.to_dict()


@pytest.mark.parametrize("method", ["thin", "race"])
def test_what_ranp_tells_is_heard_and_nnunets_noise_is_not(trainers, capsys, recwarn, method):
    limits = {"epochs": 4, "iterations": 1, "cost": 1.0} if method == "race" else {}
    how = {"flops": "40%", "method": method, "trainer": NoisyTrainer, "device": "cpu"}
    prune_plans(7, "3d_fullres", **how, **limits, batches=2, tell=print)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "Scoring 2 batches of Dataset007_Cells 3d_fullres, fold 0."
    of_race = re.compile(
        r"Bringing \d+ candidates|Left out, |Race of|\d+ of at most \d+ check-ins; |Rung at|Caution"
    )
    assert [line for line in said[1:] if not of_race.match(line)] == []
    assert bool(said[1:]) == (method == "race")
    assert not [each for each in recwarn if NOISE in str(each.message)]


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], ""),
        (["-tr", "nnUNetTrainer_5epochs"], " -tr nnUNetTrainer_5epochs"),
        (["--fold", "all", "--device", "cpu"], " -device cpu"),
        (["--out-plans", "my plans"], ""),
    ],
)
def test_the_next_command_trains_as_it_was_pruned_for(trainers, monkeypatch, arguments, options):
    def with_our_trainer(*names, trainer, **settings):
        return prune_plans(*names, trainer=Trainer, **settings)

    monkeypatch.setattr("ranp.integrations.nnunet.prune_plans", with_our_trainer)
    words = ["nnunet", "prune", "7", "3d_fullres", "--flops", "40%", "--method", "thin"]
    said = CliRunner().invoke(app, [*words, *arguments]).stderr.splitlines()
    fold = "all" if "all" in arguments else "0"
    name = "'my plans'" if "my plans" in arguments else "nnUNetPlans_ranp"
    assert said[-1] == f"Next: nnUNetv2_train 7 3d_fullres {fold} -p {name}{options}"


def test_a_race_at_a_budget_of_memory(trainers, monkeypatch):
    monkeypatch.setattr("ranp.integrations.nnunet.planner.plan_instead", lambda *a: {})
    made = prune_plans(
        7,
        "3d_fullres",
        memory="60%",
        method="race",
        candidates=("thin", "power:0.5"),
        epochs=4,
        iterations=1,
        cost=1.0,
        trainer=Trainer,
        device="cpu",
    )
    assert 0.3 * made.about.memory["full"] < made.about.memory["slim"]
    assert made.about.memory["slim"] <= 0.6 * made.about.memory["full"]
