"""Lightning: a callback that prunes at the start of `Trainer.fit`, before optimizers are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ranp


class PruneBeforeFit(L.Callback):
    """Replaces `module.network` by its slim version.

    Lightning calls `setup` in every process, after `torch.distributed` is up and before the
    optimizers exist: the batches are shared among the processes, and all get the same network.
    The plan goes to a file. Where that exists already the network is slimmed by it, without
    scoring: so a checkpoint of the slim network can be resumed from.
    """

    def __init__(
        self, loader: Iterable[Any], loss: Callable[..., Tensor], plan: Path, **options: Any
    ) -> None:
        self.loader, self.loss, self.plan, self.options = loader, loss, plan, options

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self.plan.exists():
            pl_module.network = ranp.Plan.load(self.plan).apply(pl_module.network)
        elif stage == "fit":
            pl_module.network.to(trainer.strategy.root_device)
            result = ranp.prune(pl_module.network, self.loader, self.loss, **self.options)
            pl_module.network = result.model
            if trainer.is_global_zero:
                result.plan.save(self.plan)
                print(result)


class Segmenter(L.LightningModule):
    """An ordinary Lightning module; it knows nothing of pruning."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv3d(1, 16, 3, padding=1),
            nn.BatchNorm3d(16),
            nn.ReLU(),
            nn.Conv3d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv3d(16, 2, 1),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.network(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    x = torch.randn(8, 1, 12, 12, 12)
    loader = DataLoader(TensorDataset(x, (x > 0)[:, 0].long()), batch_size=2)
    module = Segmenter()
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=PruneBeforeFit(
            loader, nn.functional.cross_entropy, Path("plan.json"), sparsity=0.5
        ),
    )
    trainer.fit(module, loader)
    print(f"loss of the last step: {trainer.callback_metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
