"""The paper's networks on its data sets, at full size and scaled down.

Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ranp.training.config import Config, load_config

Scale = Literal["paper", "small", "smoke"]
SCALES: tuple[Scale, ...] = ("paper", "small", "smoke")


@dataclass(frozen=True)
class Setting:
    """What a pair is computed with at one scale.

    Attributes:
        changes: Of the recipe, by dotted key.
        samples: Generated samples to score with, where there is no data.
        trains: Whether it is trained, or its resources alone are computed.
    """

    changes: Mapping[str, Any]
    samples: int
    trains: bool = True


@dataclass(frozen=True)
class Pair:
    """A network on a data set.

    Attributes:
        name: As the paper's figures and the registry of networks call it.
        title: For people.
        recipe: How it is trained at the paper's size.
        metrics: Names of the metrics that the paper prints, by name in a run's record.
        settings: By scale.
        changes: Of the recipe at every scale.
    """

    name: str
    title: str
    recipe: str
    metrics: Mapping[str, str]
    settings: Mapping[Scale, Setting]
    changes: Mapping[str, Any] = field(default_factory=dict)

    def config(self, scale: Scale, **changes: Any) -> Config:
        """The resolved configuration at a scale.

        Args:
            scale: Small and smoke differ from the recipe, paper hardly.
            changes: More of them; a dot in a key is written as two underscores.
        """
        named = {key.replace("__", "."): value for key, value in changes.items()}
        return load_config(
            self.recipe,
            smoke=scale == "smoke",
            changes={**self.changes, **self.settings[scale].changes, **named},
        )

    @property
    def dataset(self) -> str:
        """The kind of its data."""
        return self.recipe.partition("-")[0]


_MIOU = {"miou": "mIoU"}
_REGIONS = {"iou ET": "ET", "iou TC": "TC", "iou WT": "WT"}
_TOP = {"top1": "top-1", "top5": "top-5"}
_DEEP = {"network.options.levels": 6, "pruning.sparsity": 0.8}
_SMALL = {"data.workers": 0, "pruning.batches": 32, "pruning.size": None}
# Six levels divide by 32: below 64^3 a batch of one would leave batch norms a single value.
_SMOKE_DEEP = {"network.options.levels": 5, "network.options.base_width": 8, "data.size": 32}

PAIRS: dict[str, Pair] = {
    pair.name: pair
    for pair in (
        Pair(
            "unet3d-shapenet",
            "3D-UNet, ShapeNet",
            "shapenet-unet3d",
            _MIOU,
            {
                "paper": Setting({}, samples=6),
                "small": Setting(
                    {
                        **_SMALL,
                        "network.options.base_width": 16,
                        "data.size": 32,
                        "data.cases": 320,
                        "epochs": 20,
                        "batch": 8,
                    },
                    samples=16,
                ),
                "smoke": Setting({"epochs": 1, "data.cases": 16}, samples=2),
            },
        ),
        Pair(
            "unet3d-brats",
            "3D-UNet, BraTS'18",
            "brats-unet3d",
            _REGIONS,
            {
                "paper": Setting({}, samples=16),
                "small": Setting(
                    {
                        **_SMALL,
                        "network.options.base_width": 16,
                        "data.size": 48,
                        "data.cases": 60,
                        "data.generated_size": 64,
                        "epochs": 20,
                        "schedule.milestones": [15],
                    },
                    samples=16,
                ),
                "smoke": Setting({"epochs": 1, "data.cases": 5}, samples=2),
            },
        ),
        Pair(
            "mobilenetv2-ucf101",
            "MobileNetV2, UCF101",
            "ucf101-mobilenetv2",
            _TOP,
            {
                "paper": Setting({}, samples=16),
                "small": Setting(
                    {
                        **_SMALL,
                        "network.options.classes": 10,
                        "data.size": 56,
                        "data.generated_size": 64,
                        "data.cases": 200,
                        "data.classes": 10,
                        "optimizer.lr": 0.01,
                        "epochs": 20,
                        "schedule.milestones": [10, 15],
                    },
                    samples=16,
                ),
                "smoke": Setting({"epochs": 1}, samples=2),
            },
        ),
        Pair(
            "i3d-ucf101",
            "I3D, UCF101",
            "ucf101-i3d",
            _TOP,
            {
                "paper": Setting({}, samples=8),
                "small": Setting(
                    {
                        **_SMALL,
                        "network.options.classes": 4,
                        "data.size": 193,
                        "data.generated_size": 64,
                        "data.cases": 40,
                        "data.classes": 4,
                        "optimizer.lr": 0.01,
                        "epochs": 5,
                        "schedule.milestones": [4],
                        "batch": 4,
                    },
                    samples=8,
                ),
                # It takes no frames below 193 x 193: too slow to be trained in seconds.
                "smoke": Setting({}, samples=1, trains=False),
            },
        ),
        Pair(
            "unet3d-23-shapenet",
            "3D-UNet with 23 layers, ShapeNet",
            "shapenet-unet3d",
            _MIOU,
            {
                "paper": Setting({}, samples=3),
                "small": Setting(
                    {
                        **_SMALL,
                        "network.options.base_width": 8,
                        "data.size": 64,
                        "data.cases": 160,
                        "epochs": 20,
                        "batch": 8,
                    },
                    samples=16,
                ),
                "smoke": Setting(
                    {
                        **_SMOKE_DEEP,
                        "data.cases": 16,
                        "epochs": 1,
                        "pruning.sparsity": 0.5,
                    },
                    samples=2,
                ),
            },
            changes=_DEEP,
        ),
        Pair(
            "unet3d-23-brats",
            "3D-UNet with 23 layers, BraTS'18",
            "brats-unet3d",
            _REGIONS,
            {
                "paper": Setting({}, samples=3),
                "small": Setting(
                    {
                        **_SMALL,
                        "network.options.base_width": 8,
                        "data.size": 64,
                        "data.cases": 60,
                        "data.generated_size": 64,
                        "epochs": 20,
                        "schedule.milestones": [15],
                    },
                    samples=16,
                ),
                "smoke": Setting(
                    {
                        **_SMOKE_DEEP,
                        "data.generated_size": 32,
                        "data.cases": 5,
                        "epochs": 1,
                        "pruning.sparsity": 0.5,
                    },
                    samples=2,
                ),
            },
            changes=_DEEP,
        ),
    )
}

FOUR: tuple[Pair, ...] = tuple(
    PAIRS[name] for name in ("unet3d-shapenet", "unet3d-brats", "mobilenetv2-ucf101", "i3d-ucf101")
)
"""The four pairs of most tables."""


def input_shape(config: Config) -> tuple[int, ...]:
    """One training input with its batch dimension."""
    from ranp.datasets.ucf101 import FRAMES

    size = config.data.size
    channels = int(config.network.options["in_channels"])
    return (1, channels, FRAMES if config.data.kind == "ucf101" else size, size, size)
