"""Races inside nnU-Net: its own trainer is what the candidates are trained with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ranp.integrations.nnunet.trainer import TrainerChoice, nnunet_environment

_TRAINED_PER_VALIDATED = 5  # nnU-Net's own: 250 iterations, 50 to validate


@dataclass(frozen=True)
class TrainerLoop(TrainerChoice):
    """nnU-Net's trainer as a training function, as `ranp.race` takes one.

    Attributes:
        epochs: Epochs of a whole training: the learning rate falls over all of them.
        iterations: Iterations of an epoch.
    """

    epochs: int
    iterations: int

    @property
    def name(self) -> str:
        """What trainings are called in a store: all that they depend on but for the network."""
        return (
            f"nnU-Net {self.dataset} {self.configuration} {self.plans} fold {self.fold}, "
            f"{self.trainer_name}, {self.epochs} epochs of {self.iterations} iterations"
        )

    def train(self, model: nn.Module, seed: int) -> Iterator[dict[str, float]]:
        """Train a network with nnU-Net's steps; yield pseudo Dice and loss after every epoch.

        Batches, augmentation, loss, optimizer, learning rate and initial weights are nnU-Net's, and
        so are the figures (its loss is cross entropy - Dice, and falls below 0). The environment is
        nnU-Net's only while it works: trainings take turns.
        """
        with tempfile.TemporaryDirectory() as results:
            with nnunet_environment(nnUNet_results=results):
                trainer = self._start(model)
            for _ in range(self.epochs):
                with nnunet_environment(nnUNet_results=results):
                    line = _train_epoch(trainer)
                yield line

    def _start(self, model: nn.Module) -> Any:
        """Return a trainer with that network in place of its own."""
        trainer = self.start()
        trainer.num_epochs = self.epochs
        trainer.num_iterations_per_epoch = self.iterations
        trainer.num_val_iterations_per_epoch = max(1, self.iterations // _TRAINED_PER_VALIDATED)
        if hasattr(model, "initialize"):
            model.apply(model.initialize)  # type: ignore[arg-type]
        trainer.network = model.to(trainer.device)
        trainer.optimizer, trainer.lr_scheduler = trainer.configure_optimizers()
        trainer.on_train_start()
        return trainer


def _train_epoch(trainer: Any) -> dict[str, float]:
    """Train and validate for an epoch, as `nnUNetTrainer.run_training` does.

    The hook at the end of an epoch is not called: it draws a picture and writes checkpoints.
    """
    trainer.on_train_epoch_start()
    batches = range(trainer.num_iterations_per_epoch)
    trainer.on_train_epoch_end(
        [trainer.train_step(next(trainer.dataloader_train)) for _ in batches]
    )
    with torch.no_grad():
        trainer.on_validation_epoch_start()
        batches = range(trainer.num_val_iterations_per_epoch)
        trainer.on_validation_epoch_end(
            [trainer.validation_step(next(trainer.dataloader_val)) for _ in batches]
        )
    trainer.current_epoch += 1
    logged = trainer.logger.get_value
    return {
        "dice": float(logged("mean_fg_dice", step=-1)),
        "loss": float(logged("train_losses", step=-1)),
    }
