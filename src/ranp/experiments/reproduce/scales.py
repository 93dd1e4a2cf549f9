"""The paper's networks on its data sets, at full size and scaled down.

Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ranp.datasets.access import existing_directory
from ranp.errors import UsageError
from ranp.training.config import Config, load_config

Scale = Literal["paper", "small", "smoke"]


@dataclass(frozen=True)
class Setting:
    """Settings of a pair at one scale: changes to the recipe by dotted key, and number of samples.

    Samples are generated to score with if there is no data. Without `trains`, only resources are
    computed.
    """

    changes: Mapping[str, Any]
    samples: int
    trains: bool = True


@dataclass(frozen=True, eq=False)  # one object each, below
class Pair:
    """A network on a data set.

    Attributes:
        name: Name of the network in `paper.json` and in the registry of networks.
        title: Heading of its rows.
        recipe: Name of the recipe that trains it at the paper's size.
        metrics: Headings of the metrics that the paper prints, by name in a run's record.
        settings: Settings by scale.
        changes: Changes to the recipe at every scale.
        snip: Method of the row "SNIP NP": the authors' rule; ours on I3D and ShapeNet, where it is
            nearer to the printed row and always leaves a network (see the method card).
    """

    name: str
    title: str
    recipe: str
    metrics: Mapping[str, str]
    settings: Mapping[Scale, Setting]
    changes: Mapping[str, Any] = field(default_factory=dict)
    snip: str = "snip-authors"

    def config(self, scale: Scale, **changes: Any) -> Config:
        """Return the resolved configuration at a scale.

        Args:
            scale: Name of the scale.
            changes: Further changes; a dot in a key is written as two underscores.
        """
        dotted = {key.replace("__", "."): value for key, value in changes.items()}
        more = {**self.changes, **self.settings[scale].changes, **dotted}
        return load_config(self.recipe, smoke=scale == "smoke", changes=more)

    @cached_property
    def dataset(self) -> str:
        """Name of the data set, which is that of the recipe."""
        return self.config("paper").data.kind


_KEYS = {
    "size": ("data.size",),
    "cases": ("data.cases",),
    "generated": ("data.generated_size",),
    "classes": ("data.classes", "network.options.classes"),
    "base_width": ("network.options.base_width",),
    "levels": ("network.options.levels",),
    "milestones": ("schedule.milestones",),
    "sparsity": ("pruning.sparsity",),
}
"""Keys of a recipe by the words that settings are written with below."""


def _small(**settings: Any) -> Setting:
    """Return a setting that takes CPU minutes."""
    scored = {"pruning.batches": 16, "pruning.size": None}
    rare = {"validate_every": 100}  # and after each of the last five epochs
    scaled = {"data.workers": 0, "epochs": 8, **scored, **rare}
    return Setting({**scaled, **_by_key(settings)}, samples=16)


def _smoke(**settings: Any) -> Setting:
    """Return a setting that takes seconds."""
    return Setting({"epochs": 1, **_by_key(settings)}, samples=2)


def _by_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for name, value in settings.items() for key in _KEYS.get(name, (name,))}


_MIOU = {"miou": "mIoU"}
_REGIONS = {"iou ET": "ET", "iou TC": "TC", "iou WT": "WT"}
_TOP = {"top1": "top-1", "top5": "top-5"}
_DEEP = {"network.options.levels": 6, "pruning.sparsity": 0.8}
# Six levels divide by 32: at 32^3 batch norms would get single values.
_NARROW = {"levels": 5, "base_width": 8, "size": 32}

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
                "small": _small(size=16, cases=96, batch=4, base_width=16),
                "smoke": _smoke(cases=16),
            },
            snip="snip",
        ),
        Pair(
            "unet3d-brats",
            "3D-UNet, BraTS'18",
            "brats-unet3d",
            _REGIONS,
            {
                "paper": Setting({}, samples=16),
                "small": _small(size=24, cases=30, generated=32, base_width=8, milestones=[6]),
                "smoke": _smoke(cases=5),
            },
        ),
        Pair(
            "mobilenetv2-ucf101",
            "MobileNetV2, UCF101",
            "ucf101-mobilenetv2",
            _TOP,
            {
                "paper": Setting({}, samples=16),
                "small": _small(
                    size=32, cases=64, generated=40, classes=4, batch=4, milestones=[6]
                ),
                "smoke": _smoke(),
            },
        ),
        Pair(
            "i3d-ucf101",
            "I3D, UCF101",
            "ucf101-i3d",
            _TOP,
            {
                "paper": Setting({}, samples=16),
                # It takes no frames below 193 x 193: too slow to be trained on a CPU.
                "small": Setting({"data.size": 193}, samples=2, trains=False),
                "smoke": Setting({}, samples=1, trains=False),
            },
            snip="snip",
        ),
        Pair(
            "unet3d-23-shapenet",
            "3D-UNet with 23 layers, ShapeNet",
            "shapenet-unet3d",
            _MIOU,
            {
                "paper": Setting({}, samples=3),
                "small": _small(cases=96, batch=4, epochs=4, **_NARROW),
                "smoke": _smoke(cases=16, sparsity=0.5, **_NARROW),
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
                "small": _small(cases=30, generated=32, epochs=4, **_NARROW),
                "smoke": _smoke(cases=5, generated=32, sparsity=0.5, **_NARROW),
            },
            changes=_DEEP,
        ),
    )
}

FOUR: tuple[Pair, ...] = tuple(
    PAIRS[name] for name in ("unet3d-shapenet", "unet3d-brats", "mobilenetv2-ucf101", "i3d-ucf101")
)
"""The four pairs of most tables."""

SEGMENTATION = FOUR[:2]
"""Those whose layers are drawn one by one."""


def find_data_sets(directory: Path) -> dict[str, Path]:
    """Return the directories of the pairs' data sets, by name, as far as they are there.

    Raises:
        UsageError: There is none of them.
    """
    names = list(dict.fromkeys(pair.dataset for pair in PAIRS.values()))
    data_sets = {name: existing_directory(directory) / name for name in names}
    present = {name: path for name, path in data_sets.items() if path.is_dir()}
    if not present:
        raise UsageError(
            f"'{directory}' has none of the directories {', '.join(names)}: put each data set in "
            "the directory of its name (a link will do)"
        )
    return present


def input_shape(config: Config) -> tuple[int, ...]:
    """Return the shape of one training input, with its batch dimension."""
    channels = int(config.network.options["in_channels"])
    return (1, channels, *config.data.dataset.volume(config.data.size))
