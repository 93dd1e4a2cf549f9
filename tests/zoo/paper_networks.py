"""The networks of the paper at full width, on the smallest inputs they take."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ranp.models import build_network, find_network, network_names
from tests.zoo.case import Case, floats

_SMALLEST = {
    "unet3d-shapenet": (1, 16, 16, 16),
    "unet3d-23-shapenet": (2, 32, 32, 32),
    "unet3d-brats": (1, 16, 16, 16),
    "mobilenetv2-ucf101": (2, 16, 32, 32),
    "i3d-ucf101": (1, 16, 224, 224),
}
_SLOW = ("unet3d-23-shapenet", "i3d-ucf101")


def _shape(name: str) -> tuple[int, ...]:
    batch, *space = _SMALLEST[name]
    return (batch, find_network(name).input_shape[1], *space)


def _builder(name: str) -> Callable[[], nn.Module]:
    return lambda: build_network(name)


NETWORKS_OF_THE_PAPER = tuple(
    Case(
        name,
        find_network(name).about,
        _builder(name),
        floats(_shape(name)),
        share=0.9,
        slow=name in _SLOW,
    )
    for name in network_names()
)
