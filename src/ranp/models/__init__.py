"""Networks of the paper and others for its data sets, and their initialization."""

from ranp.models.i3d import I3D
from ranp.models.initialization import glorot_normal_, orthogonal_
from ranp.models.mobilenetv2 import MobileNetV2
from ranp.models.registry import (
    NETWORKS,
    NetworkSpec,
    build_network,
    find_network,
    network_names,
    register_network,
)
from ranp.models.resnet3d import ResNet3D
from ranp.models.unet3d import UNet3D

__all__ = [
    "I3D",
    "NETWORKS",
    "MobileNetV2",
    "NetworkSpec",
    "ResNet3D",
    "UNet3D",
    "build_network",
    "find_network",
    "glorot_normal_",
    "network_names",
    "orthogonal_",
    "register_network",
]
