"""`Result.as_widths`: the network that its argument builds costs what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from monai.networks.nets import DynUNet, SegResNet, UNet
from torch import nn

import ranp
from ranp.models import UNet3D

SHAPE = (1, 1, 16, 16, 16)


def dynunet(**widths: Any) -> nn.Module:
    stages: dict[str, Any] = {"kernel_size": [3, 3, 3], "strides": [1, 2, 2]}
    return DynUNet(3, 1, 3, **stages, upsample_kernel_size=[2, 2], **widths)


def monai_unet(**widths: Any) -> nn.Module:
    return UNet(spatial_dims=3, in_channels=1, out_channels=3, strides=(2, 2), **widths)


def segresnet(**widths: Any) -> nn.Module:
    return SegResNet(out_channels=3, blocks_down=(1, 1), blocks_up=(1,), **widths)


def unet3d(**widths: Any) -> nn.Module:
    return UNet3D(1, 3, levels=2, **widths)


@pytest.mark.parametrize(
    ("build", "argument", "full"),
    [
        (dynunet, "filters", [16, 32, 48]),
        (monai_unet, "channels", [16, 32, 64]),
        (segresnet, "init_filters", 32),
        (unet3d, "base_width", 16),
    ],
)
def test_the_argument_builds_what_it_says(
    build: Callable[..., nn.Module], argument: str, full: Any
) -> None:
    torch.manual_seed(0)
    result = ranp.prune(
        build(**{argument: full}), flops="30%", method="power:-0.25", example_input=SHAPE
    )
    widths = result.as_widths()
    assert widths.argument == argument and widths.full == full
    built = ranp.count(build(**{argument: widths.value}), SHAPE)
    assert widths.gflops == pytest.approx(built.gflops, rel=1e-9)
    assert widths.difference == pytest.approx(built.gflops / result.after.gflops - 1)
    # A list comes near; a single width goes in steps that leave whole numbers in all layers.
    assert abs(widths.difference) < (0.1 if isinstance(full, list) else 0.35)
    assert str(widths) == f"{argument}={widths.value}"
    assert f"{100 * widths.difference:+.1f} %" in repr(widths)


def test_a_network_without_such_an_argument_says_so() -> None:
    model = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 2, 1))
    result = ranp.prune(model, flops="50%", method="thin", example_input=SHAPE)
    with pytest.raises(ranp.UsageError, match="Sequential has no argument"):
        result.as_widths()
