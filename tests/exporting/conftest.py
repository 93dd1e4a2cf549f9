from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ranp
from ranp.models import I3D, MobileNetV2, UNet3D


def unet() -> nn.Module:
    return UNet3D(1, 3, levels=2, base_width=8, softmax=True)


def monai_unet() -> nn.Module:
    nets = pytest.importorskip("monai.networks.nets")
    return nets.UNet(3, 1, 2, channels=(4, 8), strides=(2,))


def small_i3d() -> nn.Module:
    model = I3D(classes=5)
    model.pool5 = nn.AvgPool3d(1)  # its own wants frames of 224 x 224
    return model


NETWORKS = {
    "unet": (unet, (1, 1, 8, 8, 8)),
    "monai": (monai_unet, (1, 1, 8, 8, 8)),
    "mobilenetv2": (lambda: MobileNetV2(classes=5), (1, 3, 4, 32, 32)),
    "i3d": (small_i3d, (1, 3, 8, 32, 32)),
}


@dataclass(frozen=True)
class Example:
    """A network whose norms have something to do, full or slim."""

    model: nn.Module
    shape: tuple[int, ...]
    plan: ranp.Plan | None

    @classmethod
    def make(cls, name: str, *, slim: bool) -> Example:
        build, shape = NETWORKS[name]
        torch.manual_seed(0)
        model = build()
        if not slim:
            return cls(_lived_in(model), shape, None)
        plan = ranp.plan(model, sparsity=0.5, method="layerwise", example_input=shape)
        return cls(_lived_in(plan.apply(model)), shape, plan)


def _lived_in(model: nn.Module) -> nn.Module:
    """With statistics as training leaves them."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for name in ("weight", "bias", "running_mean", "running_var"):
                tensor = getattr(module, name)
                with torch.no_grad():
                    tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return model


def run_onnx(path: Path, *inputs: Tensor) -> list[Tensor]:
    """Runs a file as somebody without ranp would."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    feed = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return [torch.from_numpy(np.asarray(y)) for y in session.run(None, feed)]


def run_pt2(path: Path, *inputs: Tensor) -> list[Tensor]:
    output = torch.export.load(path).module()(*inputs)
    return [output] if isinstance(output, Tensor) else list(output)


RUN = {".onnx": run_onnx, ".pt2": run_pt2}


@torch.no_grad()
def assert_equal(model: nn.Module, path: Path, shape: tuple[int, ...]) -> None:
    """The file gives out what the network does, for inputs that `export` did not try."""
    x = 2 * torch.rand(shape, generator=torch.Generator().manual_seed(9)) - 1
    expected = model.eval()(x)
    (output,) = RUN[path.suffix](path, x)
    assert output.shape == expected.shape
    assert (output - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert expected.std() > 1e-3  # or else anything would be equal


def origin_of(path: Path) -> Any:
    """What a file says of itself, read without ranp."""
    if path.suffix == ".onnx":
        runtime = pytest.importorskip("onnxruntime")
        return json.loads(
            runtime.InferenceSession(path).get_modelmeta().custom_metadata_map["ranp"]
        )
    extra = {"ranp.json": ""}
    torch.export.load(path, extra_files=extra)
    return json.loads(extra["ranp.json"])
