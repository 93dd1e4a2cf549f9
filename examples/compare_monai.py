"""A MONAI script of one's own, compared: is the slim DynUNet worth training on these scans?

python examples/compare_monai.py FOLDER [EPOCHS] [SEEDS] [CASES]

The folder has images*/ and labels*/ of .nii.gz files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from monai.data import CacheDataset, DataLoader
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import DynUNet
from monai.networks.utils import one_hot
from monai.transforms import Compose, LoadImaged, NormalizeIntensityd, Resized

import ranp

FOLDER, *numbers = sys.argv[1:]
EPOCHS, SEEDS, CASES = (*map(int, numbers), *(20, 3, 60)[len(numbers) :])
KEYS, CLASSES = ("image", "label"), 3

images = sorted(Path(FOLDER).glob("images*/*.nii.gz"))
pairs = [
    (i, i.parent.with_name(i.parent.name.replace("images", "labels")) / i.name) for i in images
]
files = [dict(zip(KEYS, pair, strict=True)) for pair in pairs if pair[1].exists()][:CASES]
transform = Compose(
    [
        LoadImaged(KEYS, ensure_channel_first=True),
        Resized(KEYS, (32, 32, 32), mode=("trilinear", "nearest")),
        NormalizeIntensityd("image"),
    ]
)
train_set = CacheDataset(files[len(files) // 5 :], transform, progress=False)
test_set = CacheDataset(files[: len(files) // 5], transform, progress=False)
loss = DiceCELoss(to_onehot_y=True, softmax=True)


def build() -> DynUNet:
    return DynUNet(3, 1, CLASSES, [3] * 3, [1, 2, 2], [2, 2], filters=[16, 32, 64])


def train(model, seed):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(EPOCHS):
        model.train()
        for batch in DataLoader(train_set, batch_size=2, shuffle=True):
            optimizer.zero_grad()
            value = loss(model(batch["image"]), batch["label"])
            value.backward()
            optimizer.step()
        model.eval()
        dice = DiceMetric(include_background=False)
        with torch.no_grad():
            for batch in DataLoader(test_set):
                found = model(batch["image"]).argmax(1, keepdim=True)
                dice(one_hot(found, CLASSES), one_hot(batch["label"], CLASSES))
        yield {"dice": dice.aggregate().item(), "loss": value.item()}


if __name__ == "__main__":
    print(
        ranp.compare(
            build, train, methods=["full", "thin", "ranp-f", "weighted"], budget={"flops": "10%"},
            seeds=SEEDS, score_with=(DataLoader(train_set), loss), floor="auto",
        )
    )  # fmt: skip
