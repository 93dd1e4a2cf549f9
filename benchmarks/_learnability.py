"""Can a small network learn each synthetic data set, and not by a shortcut?

Run by `python -m benchmarks._learnability`; takes about a quarter of an hour on one core. Every
figure is on cases that were not trained on. The shortcuts get every advantage: they are fitted by
exhaustive search on the training cases.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from ranp.datasets import open_cases, synthesise, synthetic_cases
from ranp.datasets.brats import REGIONS
from ranp.datasets.cases import Cases
from ranp.datasets.loader import Loader
from ranp.datasets.parts import PARTS, category_named, part_miou, shape_iou
from ranp.datasets.voxels import EMPTY


class Kept:
    """A reader that keeps what it read: the synthetic cases are drawn once, not every epoch."""

    def __init__(self, cases: Cases) -> None:
        self.ids = cases.ids
        self._samples = [cases.reader.read(i, np.random.default_rng(0)) for i in range(len(cases))]

    def read(self, index: int, rng: np.random.Generator):
        return self._samples[index]


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, padding=1), nn.BatchNorm3d(outputs), nn.ReLU(inplace=True)
    )


class SmallUNet(nn.Module):
    """Three levels, 12 to 48 channels."""

    def __init__(self, inputs: int, classes: int, width: int = 12) -> None:
        super().__init__()
        self.down1, self.down2 = block(inputs, width), block(width, 2 * width)
        self.middle = nn.Sequential(block(2 * width, 4 * width), block(4 * width, 4 * width))
        self.up2, self.up1 = block(6 * width, 2 * width), block(3 * width, width)
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool3d(one, 2))
        y = self.middle(F.max_pool3d(two, 2))
        y = self.up2(torch.cat([two, F.interpolate(y, scale_factor=2)], 1))
        y = self.up1(torch.cat([one, F.interpolate(y, scale_factor=2)], 1))
        return self.head(y)


class SmallVideoNet(nn.Module):
    """Four strided 3D convolutions; with `frames=1` it sees a single frame."""

    def __init__(self, classes: int, frames: int) -> None:
        super().__init__()
        deep = 3 if frames > 1 else 1
        layers: list[nn.Module] = []
        channels = 3
        for width, stride in ((16, (1, 2, 2)), (32, (2, 2, 2)), (64, (2, 2, 2)), (64, (1, 1, 1))):
            layers += [
                nn.Conv3d(
                    channels,
                    width,
                    (deep, 3, 3),
                    stride=stride if frames > 1 else (1, *stride[1:]),
                    padding=(deep // 2, 1, 1),
                ),
                nn.BatchNorm3d(width),
                nn.ReLU(inplace=True),
            ]
            channels = width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).mean((2, 3, 4)))


def cross_entropy(logits, y):
    return F.cross_entropy(logits, y, ignore_index=EMPTY)


def cross_entropy_and_dice(logits, y):
    """Regions are small: without the Dice term a short training does not find them."""
    probability = logits.softmax(1)
    truth = F.one_hot(y, logits.shape[1]).movedim(-1, 1)
    overlap = (probability * truth).sum((0, 2, 3, 4))
    total = (probability + truth).sum((0, 2, 3, 4))
    present = truth.sum((0, 2, 3, 4)) > 0
    return F.cross_entropy(logits, y) + (1 - 2 * overlap / total)[present].mean()


def train(network, cases: Cases, epochs, batch, lr=3e-3, view=lambda x: x, loss=cross_entropy):
    torch.manual_seed(0)
    loader = Loader(cases, batch, training=True)
    steps = epochs * len(loader)
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    network.train()
    for epoch in range(epochs):
        for sample in loader.epoch(epoch):
            optimizer.zero_grad()
            loss(network(view(sample["x"])), sample["y"]).backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def dice(predicted, truth) -> float:
    total = predicted.sum() + truth.sum()
    return float(2 * (predicted & truth).sum() / total) if total else 1.0


@torch.no_grad()
def shapes(size: int = 24) -> None:
    training = Cases(Kept(synthetic_cases("shapenet", size=size, samples=320, seed=1)))
    test = synthetic_cases("shapenet", size=size, samples=64, seed=2)
    # The shortcut knows the category and how often each part was where: no look at the shape.
    prior = np.zeros((PARTS, size, size, size), np.float32)
    for sample in training:
        labels = sample["y"].numpy()
        occupied = np.nonzero(labels != EMPTY)
        np.add.at(prior, (labels[occupied], *occupied), 1)
    smooth = F.avg_pool3d(torch.from_numpy(prior)[None], 5, 1, 2)[0].numpy() + 1e-6 * prior.mean(
        (1, 2, 3), keepdims=True
    )
    with torch.enable_grad():
        network = train(SmallUNet(1, PARTS), training, epochs=12, batch=8)
    scores: dict[str, list[float]] = {"network": [], "position": [], "largest part": []}
    correct = total = 0
    names = []
    for sample in test:
        labels, category = sample["y"].numpy(), category_named(sample["category"])
        logits = network(sample["x"][None])[0].numpy()
        names.append(category.name)
        scores["network"].append(shape_iou(logits, labels, category))
        scores["position"].append(shape_iou(smooth, labels, category))
        constant = np.broadcast_to(prior.sum((1, 2, 3), keepdims=True), prior.shape)
        scores["largest part"].append(shape_iou(constant, labels, category))
        occupied = labels != EMPTY
        correct += (logits.argmax(0)[occupied] == labels[occupied]).sum()
        total += occupied.sum()
    for name, ious in scores.items():
        print(f"shapenet    part mIoU, {name}: {part_miou(ious, names).overall:.3f}")
    print(f"shapenet    voxel accuracy over all {PARTS} parts, network: {correct / total:.3f}")


def best_threshold_dice(x: list[np.ndarray], y: list[np.ndarray]) -> tuple[int, float, int]:
    """The modality, threshold and direction that separate a region best on training cases."""
    best = (0.0, (0, 0.0, 1))
    for modality in range(x[0].shape[0]):
        for direction in (1, -1):
            for threshold in np.linspace(-3, 3, 61):
                picked = [direction * case[modality] > direction * threshold for case in x]
                inside = [p & (c[modality] != 0) for p, c in zip(picked, x, strict=True)]
                score = np.mean([dice(p, t) for p, t in zip(inside, y, strict=True)])
                best = max(best, (float(score), (modality, float(threshold), direction)))
    return best[1]


def volumes(name: str, training: Cases, test: Cases, inputs: int, classes: int, split) -> None:
    unet = train(
        SmallUNet(inputs, classes), training, epochs=12, batch=4, loss=cross_entropy_and_dice
    )
    pixelwise = nn.Sequential(
        nn.Conv3d(inputs, 32, 1),
        nn.ReLU(),
        nn.Conv3d(32, 32, 1),
        nn.ReLU(),
        nn.Conv3d(32, classes, 1),
    )
    pixelwise = train(pixelwise, training, epochs=12, batch=4, loss=cross_entropy_and_dice)
    fitted = [(s["x"].numpy(), split(s["y"].numpy())) for s in map(training.__getitem__, range(16))]
    for region in fitted[0][1]:
        m, t, d = best_threshold_dice([x for x, _ in fitted], [y[region] for _, y in fitted])
        scores = {"network": [], "all modalities, voxel by voxel": [], "best single threshold": []}
        for sample in test:
            truth = split(sample["y"].numpy())[region]
            x = sample["x"].numpy()
            with torch.no_grad():
                for key, net in zip(scores, (unet, pixelwise), strict=False):
                    predicted = net(sample["x"][None])[0].argmax(0).numpy()
                    scores[key].append(dice(split(predicted)[region], truth))
            scores["best single threshold"].append(dice((d * x[m] > d * t) & (x[m] != 0), truth))
        for key, values in scores.items():
            print(f"{name:<11} Dice {region}, {key}: {np.mean(values):.3f}")


def tumours() -> None:
    training = Cases(Kept(synthetic_cases("brats", size=32, samples=120, seed=1)))
    test = synthetic_cases("brats", size=32, samples=32, seed=2)
    volumes("brats", training, test, 4, 5, regions)


def regions(labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return the masks of ET, TC and WT in a label volume."""
    return {name: np.isin(labels, members) for name, members in REGIONS.items()}


def hippocampi() -> None:
    training = Cases(Kept(synthetic_cases("hippocampus", size=32, samples=160, seed=1)))
    test = synthetic_cases("hippocampus", size=32, samples=40, seed=2)
    names = {"anterior": 1, "posterior": 2}
    volumes(
        "hippocampus", training, test, 1, 3, lambda y: {n: y == label for n, label in names.items()}
    )


def motion(cases: int, epochs: int) -> None:
    """From .avi files, through the reader with its crops and flips, codec artefacts included."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "ucf101"
        synthesise("ucf101", directory, cases=cases, size=64, seed=1)
        training = open_cases("ucf101", directory, "train", size=48)
        test = open_cases("ucf101", directory, "validation", size=48)
        classes = max(int(sample["y"]) for sample in test) + 1
        for name, view, frames in (
            ("16 frames", lambda x: x, 16),
            ("one frame", lambda x: x[:, :, 8:9], 1),
            ("16 frames, shuffled", lambda x: x[:, :, torch.randperm(16)], 16),
        ):
            network = train(
                SmallVideoNet(classes, frames), training, epochs=epochs, batch=8, view=view
            )
            correct = 0
            with torch.no_grad():
                for sample in test:
                    correct += int(network(view(sample["x"][None])).argmax() == sample["y"])
            print(
                f"ucf101      accuracy of {classes} classes, {name}: {correct / len(test):.3f} "
                f"(chance {1 / classes:.3f}, {len(test)} clips)"
            )


def main() -> None:
    torch.set_num_threads(1)
    tumours()
    hippocampi()
    shapes()
    motion(cases=640, epochs=15)


if __name__ == "__main__":
    main()
