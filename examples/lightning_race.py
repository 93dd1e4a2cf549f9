"""Lightning: let slim networks race in the trainer that you have."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ranp

EPOCHS = 8


class Segmenter(L.LightningModule):
    """An ordinary Lightning module around a network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.network(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        x, y = batch
        self.log("accuracy", (self.network(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Report(L.Callback):
    """Reports the metric and the training loss of every epoch."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self.report = report

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        found = trainer.callback_metrics
        self.report({"accuracy": found["accuracy"], "loss": found["loss"]})


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(16, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU(), nn.Upsample(scale_factor=2),
        nn.Conv3d(32, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.Conv3d(16, 2, 1),
    )  # fmt: skip


@functools.cache
def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return batches to train with, and to look at on the way."""
    x = torch.randn(12, 1, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    y = (nn.functional.avg_pool3d(x, 3, 1, 1) > 0)[:, 0].long()
    return tuple(DataLoader(TensorDataset(x[i], y[i]), 2) for i in (slice(8), slice(8, 12)))


@ranp.reporting
def train(model: nn.Module, seed: int, report: Callable[[dict[str, Any]], None]) -> None:
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=Report(report),
    )
    trainer.fit(Segmenter(model), *loaders())


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    race = ranp.race(
        build,
        train,
        budget={"flops": "30%"},
        length=EPOCHS,
        cost=3,  # times the training, which is short here; keep the default of 5 % for yours
        score_with=(loaders()[0], nn.functional.cross_entropy),
    )
    print(race)
    slim = race.plan.apply(build())
    print(f"{sum(p.numel() for p in slim.parameters()):,} parameters")


if __name__ == "__main__":
    main()
