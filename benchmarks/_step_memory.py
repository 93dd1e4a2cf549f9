"""Peak memory of a training step of the networks that are benchmarked (see `step_memory`)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ranp.resources.step_memory import MeasuredStep, StepRequest, measure_steps

_SEGMENTING: dict[str, dict[str, Any]] = {
    "BasicUNet": {"features": (16, 16, 32, 64, 128, 16)},
    "SegResNet": {"init_filters": 16},
    "DynUNet": {
        "kernel_size": [3, 3, 3, 3],
        "strides": [1, 2, 2, 2],
        "upsample_kernel_size": [2, 2, 2],
        "filters": [16, 32, 64, 96],
        "deep_supervision": True,
        "deep_supr_num": 2,
    },
}
SEGMENTING = tuple(_SEGMENTING)


def build(network: str, plan: str | None = None) -> nn.Module:
    """A network of the registry, or `hippocampus`, the recipe's; slim by a plan, if given."""
    from ranp import models
    from ranp.slimming import Plan
    from ranp.training.config import load_config
    from ranp.training.networks import build_network

    if network == "hippocampus":
        model = build_network(load_config("hippocampus-unet3d").network)
    else:
        model = models.build_network(network)
    return Plan.load(plan).apply(model) if plan else model


def build_segmenting(network: str, classes: int) -> nn.Module:
    """A network of MONAI's."""
    from monai.networks import nets

    make = partial(getattr(nets, network), spatial_dims=3, in_channels=1, out_channels=classes)
    return make(**_SEGMENTING[network])


def dice_ce(output: Tensor) -> Tensor:
    """MONAI's DiceCELoss against labels of zeros; of deep supervision, the mean over heads."""
    from monai.losses import DiceCELoss

    heads = output.unbind(1) if output.dim() == 6 else [output]
    loss = DiceCELoss(softmax=True, to_onehot_y=True)
    return torch.stack([loss(head, torch.zeros_like(head[:, :1])) for head in heads]).mean()


def measure(
    network: str, shape: tuple[int, ...], optimizer: Any, plan: Path | None = None
) -> MeasuredStep:
    """Measure training steps in a new process."""
    arguments = [network, None if plan is None else str(plan)]
    request = StepRequest(f"{__name__}:build", arguments, shape, [(optimizer, "32")])
    return measure_steps(request)[0]


def measure_segmenting(network: str, classes: int, shape: tuple[int, ...]) -> MeasuredStep:
    """Measure a step of a network of MONAI's with its loss, and Adam."""
    request = StepRequest(
        f"{__name__}:build_segmenting",
        [network, classes],
        shape,
        [("adam", "32")],
        loss=f"{__name__}:dice_ce",
    )
    return measure_steps(request)[0]
