"""The networks of the paper by name.

Names and input shapes are known without importing torch; the builders import it when called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranp.errors import UsageError, suggest

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class NetworkSpec:
    """A named network and the setting in which the paper prunes it.

    Attributes:
        name: What the network is called on the command line.
        build: Makes a new instance with PyTorch's default initialisation.
        input_shape: One sample with its batch dimension, (1, channels, depth, height, width).
        classes: Channels of the output.
        description: One line for people.
        dataset: The data set it is trained on.
        sparsity: The share of neurons that the paper removes.
        reweighting: The lambda of Eq. 10 that the paper uses.
    """

    name: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    classes: int
    description: str
    dataset: str
    sparsity: float
    reweighting: float


def names() -> tuple[str, ...]:
    """The names of all networks."""
    return tuple(_NETWORKS)


def spec(name: str) -> NetworkSpec:
    """What is known of a network, or an error that suggests the closest name."""
    if name not in _NETWORKS:
        raise UsageError(f"unknown network '{name}'.{suggest(name, _NETWORKS)}")
    return _NETWORKS[name]


def build(name: str) -> nn.Module:
    """Makes a new instance of a network, with PyTorch's default initialisation."""
    return spec(name).build()


def _unet3d_shapenet() -> nn.Module:
    from ranp.models.unet3d import UNet3D

    return UNet3D(in_channels=1, classes=50, levels=4, base_width=64, softmax=True)


def _unet3d_23_shapenet() -> nn.Module:
    from ranp.models.unet3d import UNet3D

    return UNet3D(in_channels=1, classes=50, levels=6, base_width=64, softmax=True)


def _unet3d_brats() -> nn.Module:
    from ranp.models.unet3d import UNet3D

    return UNet3D(in_channels=4, classes=5, levels=4, base_width=32)


def _mobilenetv2_ucf101() -> nn.Module:
    from ranp.models.mobilenetv2 import MobileNetV2

    return MobileNetV2(in_channels=3, classes=101)


def _i3d_ucf101() -> nn.Module:
    from ranp.models.i3d import I3D

    return I3D(in_channels=3, classes=101)


_NETWORKS = {
    network.name: network
    for network in (
        NetworkSpec(
            name="unet3d-shapenet",
            build=_unet3d_shapenet,
            input_shape=(1, 1, 64, 64, 64),
            classes=50,
            description="3D-UNet with 15 layers, part segmentation of voxelised shapes",
            dataset="shapenet",
            sparsity=0.7824,
            reweighting=11.0,
        ),
        NetworkSpec(
            name="unet3d-23-shapenet",
            build=_unet3d_23_shapenet,
            input_shape=(1, 1, 64, 64, 64),
            classes=50,
            description="3D-UNet with 23 layers, part segmentation of voxelised shapes",
            dataset="shapenet",
            sparsity=0.80,
            reweighting=11.0,
        ),
        NetworkSpec(
            name="unet3d-brats",
            build=_unet3d_brats,
            input_shape=(1, 4, 128, 128, 128),
            classes=5,
            description="3D-UNet with 15 layers, brain tumour segmentation from four MR contrasts",
            dataset="brats",
            sparsity=0.7817,
            reweighting=15.0,
        ),
        NetworkSpec(
            name="mobilenetv2-ucf101",
            build=_mobilenetv2_ucf101,
            input_shape=(1, 3, 16, 112, 112),
            classes=101,
            description="MobileNetV2-3D, action recognition in 16 frames of 112 x 112",
            dataset="ucf101",
            sparsity=0.3315,
            reweighting=80.0,
        ),
        NetworkSpec(
            name="i3d-ucf101",
            build=_i3d_ucf101,
            input_shape=(1, 3, 16, 224, 224),
            classes=101,
            description="I3D (inflated Inception-v1), action recognition in 16 frames of 224 x 224",
            dataset="ucf101",
            sparsity=0.2532,
            reweighting=80.0,
        ),
    )
}
