"""Three training functions on real data, as a user would write them: plain PyTorch.

Each task is a network (`build`), a training loop that yields at every check-in (`train`), and
batches with a loss to score with (`loader`, `loss`). Optimizer, learning rate, schedule and batch
are those of the packaged recipes for such data. The data is below the folder that RANP_SHARED
names, or in `../shared`. Seeds take turns with two folds, so that differences between patients
count as well as differences between seeds; ModelNet10 has an official test part. What is yielded
before the last check-in, and so all that a race sees, is of cases that are held out from the
training part; the last is of the test cases.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranp.models.unet3d import UNet3D

SHARED = Path(os.environ.get("RANP_SHARED", Path(__file__).parents[2] / "shared")) / "data"

CHECK_IN = 50
"""Training steps between two check-ins."""


# Segmentation: whole volumes, resized. ----------------------------------------------------------


def _volumes(pairs: list[tuple[Path, Path]], size: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Read images and labels, resized to one size; images are normalised one by one."""
    images, labels = [], []
    for image, label in pairs:
        x = torch.from_numpy(np.asarray(nibabel.load(image).dataobj, np.float32))
        y = torch.from_numpy(np.asarray(nibabel.load(label).dataobj, np.float32))
        x = F.interpolate(x[None, None], size, mode="trilinear", align_corners=False)[0]
        images.append((x - x.mean()) / x.std())
        labels.append(F.interpolate(y[None, None], size, mode="nearest")[0, 0].long())
    return torch.stack(images), torch.stack(labels)


@functools.cache
def hippocampus_data() -> tuple[Tensor, Tensor]:
    root = SHARED / "hippocampus"
    names = sorted(path.name for path in (root / "images").iterdir())
    pairs = [(root / "images" / name, root / "labels" / name) for name in names]
    return _volumes([pair for pair in pairs if pair[1].exists()], (24, 32, 24))


@functools.cache
def left_atrium_data() -> tuple[Tensor, Tensor]:
    root = SHARED / "left_atrium" / "Task02_LeftAtrium"
    names = sorted(path.name for path in (root / "imagesTr").iterdir())
    return _volumes([(root / "imagesTr" / n, root / "labelsTr" / n) for n in names], (40, 32, 24))


def _fold(cases: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return cases to train with, to look at on the way, and to test with.

    Every fifth case is for the test, odd seeds take others than even ones; of the rest every eighth
    is held out from training.
    """
    number = torch.arange(cases)
    rest, test = number[number % 5 != seed % 2], number[number % 5 == seed % 2]
    return (*_held_out(rest, 8), test)


def _held_out(cases: Tensor, every: int) -> tuple[Tensor, Tensor]:
    place = torch.arange(len(cases)) % every
    return cases[place != 0], cases[place == 0]


def dice_loss(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy plus 1 - Dice, the mean over the structures."""
    classes = output.shape[1]
    p = output.softmax(1)[:, 1:]
    y = F.one_hot(target, classes).movedim(-1, 1)[:, 1:].to(p)
    over = (0, 2, 3, 4)
    dice = (2 * (p * y).sum(over) + 1) / (p.sum(over) + y.sum(over) + 1)
    return F.cross_entropy(output, target) + 1 - dice.mean()


@torch.no_grad()
def _dice(model: nn.Module, x: Tensor, y: Tensor, classes: int) -> list[float]:
    """Dice of every structure, the mean over cases."""
    model.eval()
    scores = []
    for image, label in zip(x.split(1), y.split(1), strict=True):
        found = model(image).argmax(1)
        masks = [(found == c, label == c) for c in range(1, classes)]
        scores.append(
            [float(2 * (a & b).sum() / (a.sum() + b.sum()).clamp(min=1)) for a, b in masks]
        )
    model.train()
    return np.mean(scores, 0).tolist()


def _train_segmentation(
    data: Callable[[], tuple[Tensor, Tensor]], classes: int, steps: int, model: nn.Module, seed: int
) -> Iterator[dict[str, float]]:
    x, y = data()
    train, seen, test = _fold(len(x), seed)
    generator = torch.Generator().manual_seed(seed)
    model.train().to(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order: list[Tensor] = []
    losses = []
    for step in range(1, steps + 1):
        if not order:
            order = list(train[torch.randperm(len(train), generator=generator)].split(2))
        batch = order.pop()
        images, labels = x[batch], y[batch]
        gain = 1 + 0.2 * torch.randn(len(batch), 1, 1, 1, 1, generator=generator)
        images = images * gain + 0.1 * torch.randn(images.shape, generator=generator)
        loss = dice_loss(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % CHECK_IN == 0:
            cases = test if step == steps else seen
            by_class = _dice(model, x[cases], y[cases], classes)
            yield {
                "dice": float(np.mean(by_class)),
                "loss": float(np.mean(losses[-CHECK_IN:])),
                **{f"dice_{c}": value for c, value in enumerate(by_class, 1)},
            }


def train_hippocampus(model: nn.Module, seed: int, steps: int = 500) -> Iterator[dict[str, float]]:
    return _train_segmentation(hippocampus_data, 3, steps, model, seed)


def left_atrium(model: nn.Module, seed: int, steps: int = 400) -> Iterator[dict[str, float]]:
    return _train_segmentation(left_atrium_data, 2, steps, model, seed)


def _segmentation_batches(data: Callable[[], tuple[Tensor, Tensor]]) -> list[Any]:
    x, y = data()
    train, _, _ = _fold(len(x), 0)
    chosen = train[:: max(1, len(train) // 16)][:16]
    return [(x[i : i + 1], y[i : i + 1]) for i in chosen.tolist()]


# Classification of voxel grids. ------------------------------------------------------------------


@functools.cache
def modelnet_data() -> tuple[Tensor, Tensor, int]:
    data = np.load(SHARED / "modelnet10" / "modelnet10_vox32.npz")
    x = np.unpackbits(data["vox_packed"], axis=1).reshape(-1, 1, 32, 32, 32)
    return torch.from_numpy(x), torch.from_numpy(data["y"].astype(np.int64)), int(data["n_train"])


def modelnet10(model: nn.Module, seed: int, steps: int = 500) -> Iterator[dict[str, float]]:
    x, y, n = modelnet_data()
    train, seen = _held_out(torch.arange(n), 16)
    generator = torch.Generator().manual_seed(seed)
    model.train().to(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order: list[Tensor] = []
    losses = []
    for step in range(1, steps + 1):
        if not order:
            order = list(train[torch.randperm(len(train), generator=generator)].split(16)[:-1])
        batch = order.pop()
        volumes = torch.rot90(
            x[batch].float(), int(torch.randint(4, (1,), generator=generator)), (2, 3)
        )
        loss = F.cross_entropy(model(volumes), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % CHECK_IN == 0:
            cases = torch.arange(n, len(x)) if step == steps else seen
            yield {
                "accuracy": _accuracy(model, x[cases], y[cases]),
                "loss": float(np.mean(losses[-CHECK_IN:])),
            }


@torch.no_grad()
def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    found = torch.cat([model(part.float()).argmax(1) for part in x.split(32)])
    model.train()
    return float((found == y).float().mean())


def _modelnet_batches() -> list[Any]:
    x, y, n = modelnet_data()
    return [(x[i : i + 1].float(), y[i : i + 1]) for i in range(0, n, n // 32)]


def resnet3d() -> nn.Module:
    """ResNet-10 for grids of 32^3: the first convolution halves them, nothing is pooled."""
    from monai.networks.nets import ResNet

    return ResNet(
        "basic", [1, 1, 1, 1], [32, 64, 128, 256], n_input_channels=1, num_classes=10,
        conv1_t_size=3, conv1_t_stride=2, no_max_pool=True,
    )  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A network, how it is trained, and what it is scored with.

    `cost` is the most that a race costs, as a share of the training. These trainings are short, so
    it is much: at most 1,200 steps, which are 5 % of 24,000.
    """

    build: Callable[[], nn.Module]
    train: Callable[[nn.Module, int], Iterator[dict[str, float]]]
    loader: Callable[[], list[Any]]
    loss: Callable[[Tensor, Tensor], Tensor]
    shape: tuple[int, ...]
    batch: int
    check_ins: int
    cost: float = 2.4

    def trained_longer(self, train: Callable[..., Iterator[dict[str, float]]], times: int) -> Task:
        """Return the same with a longer training, and with races of as many steps."""
        check_ins = times * self.check_ins
        longer = functools.partial(train, steps=CHECK_IN * check_ins)
        return replace(self, train=longer, check_ins=check_ins, cost=self.cost / times)


SHORT = {
    "hippocampus": Task(
        lambda: UNet3D(1, 3, base_width=32),
        train_hippocampus,
        functools.partial(_segmentation_batches, hippocampus_data),
        dice_loss,
        (1, 1, 24, 32, 24),
        2,
        500 // CHECK_IN,
    ),
    "modelnet10": Task(
        resnet3d,
        modelnet10,
        _modelnet_batches,
        F.cross_entropy,
        (1, 1, 32, 32, 32),
        16,
        500 // CHECK_IN,
    ),
    "left_atrium": Task(
        lambda: UNet3D(1, 2, base_width=32),
        left_atrium,
        functools.partial(_segmentation_batches, left_atrium_data),
        dice_loss,
        (1, 1, 40, 32, 24),
        2,
        400 // CHECK_IN,
    ),
}

LONG = {
    f"{name}-long": SHORT[name].trained_longer(train, 4)
    for name, train in {
        "hippocampus": train_hippocampus,
        "modelnet10": modelnet10,
        "left_atrium": left_atrium,
    }.items()
}
"""The same, trained four times as long: 2,000, 2,000 and 1,600 steps."""

TASKS = {**SHORT, **LONG}
