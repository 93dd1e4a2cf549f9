"""The networks of the paper and their initialisation.

Only the registry is imported at once; what needs torch is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ranp.models.registry import NetworkSpec, build, names, spec

if TYPE_CHECKING:
    from ranp.models.i3d import I3D
    from ranp.models.initialization import glorot_normal_, orthogonal_
    from ranp.models.mobilenetv2 import MobileNetV2
    from ranp.models.unet3d import UNet3D

__all__ = [
    "I3D",
    "MobileNetV2",
    "NetworkSpec",
    "UNet3D",
    "build",
    "glorot_normal_",
    "names",
    "orthogonal_",
    "spec",
]

_HOMES = {
    "I3D": "i3d",
    "MobileNetV2": "mobilenetv2",
    "UNet3D": "unet3d",
    "glorot_normal_": "initialization",
    "orthogonal_": "initialization",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
