"""Predicted against measured memory of training steps, for networks that people train."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

import torch
from torch import nn

from ranp.errors import RanpError, UsageError
from ranp.models import build_network
from ranp.resources.autocast import Precision
from ranp.resources.machine import device_name
from ranp.resources.memory_correction import MemoryCorrection, constant_bytes, save_correction
from ranp.resources.step_memory import (
    MeasuredStep,
    StepRequest,
    measure_steps,
    zero_label_loss,
)
from ranp.resources.training_memory import Device, Optimizer, predict_training_memory

WAYS: tuple[tuple[Optimizer, Precision], ...] = (
    *(("sgd", "32"), ("adam", "32"), ("sgd", "bf16"), ("adam", "bf16")),
    *(("sgd", "16"), ("adam", "16")),
)


@dataclass(frozen=True)
class Checked:
    """A network to check, at a batch shape that a CPU runs in seconds, and the package it needs."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    needs: str | None = None


def _monai(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from monai.networks import nets

        network: nn.Module = getattr(nets, name)(**options)
        return network

    return build


def _nnunet() -> nn.Module:
    from dynamic_network_architectures.architectures.unet import PlainConvUNet

    network: nn.Module = PlainConvUNet(
        input_channels=1,
        n_stages=4,
        features_per_stage=[32, 64, 128, 256],
        conv_op=nn.Conv3d,
        kernel_sizes=3,
        strides=[1, 2, 2, 2],
        n_conv_per_stage=2,
        num_classes=3,
        n_conv_per_stage_decoder=2,
        conv_bias=True,
        norm_op=nn.InstanceNorm3d,
        norm_op_kwargs={"affine": True},
        nonlin=nn.LeakyReLU,
        nonlin_kwargs={"inplace": True},
        deep_supervision=True,
    )
    return network


NETWORKS: Mapping[str, Checked] = {
    **{
        name: Checked(lambda name=name: build_network(name), shape)  # type: ignore[misc]
        for name, shape in {
            "unet3d-shapenet": (1, 1, 32, 32, 32),
            "unet3d-brats": (1, 4, 32, 32, 32),
            "mobilenetv2-ucf101": (1, 3, 16, 112, 112),
            "i3d-ucf101": (1, 3, 16, 224, 224),
        }.items()
    },
    "DynUNet": Checked(
        _monai(
            "DynUNet",
            spatial_dims=3,
            in_channels=1,
            out_channels=3,
            kernel_size=[3, 3, 3, 3],
            strides=[1, 2, 2, 2],
            upsample_kernel_size=[2, 2, 2],
            filters=[32, 64, 96, 128],
        ),
        (1, 1, 48, 48, 48),
        "monai",
    ),
    "SegResNet": Checked(
        _monai("SegResNet", init_filters=16, in_channels=1, out_channels=3),
        (1, 1, 48, 48, 48),
        "monai",
    ),
    "SwinUNETR": Checked(
        _monai("SwinUNETR", in_channels=1, out_channels=3, feature_size=12),
        (1, 1, 64, 64, 64),
        "monai",
    ),
    "nnU-Net": Checked(_nnunet, (1, 1, 48, 48, 48), "dynamic_network_architectures"),
}
"""The networks that are checked where they are installed, by name."""


def build_checked(name: str) -> nn.Module:
    """Build a network of the list."""
    return NETWORKS[name].build()


@dataclass(frozen=True)
class Comparison:
    """A training step as predicted (bytes at the peak; 0 if that failed) and as measured."""

    network: str
    shape: tuple[int, ...]
    optimizer: str
    precision: str
    predicted: int
    measured: MeasuredStep

    @property
    def error(self) -> float | None:
        """How much more was predicted than measured, as a share of it; None if not measured."""
        return None if self.measured.failure else self.predicted / self.measured.peak - 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**vars(self), "measured": asdict(self.measured), "error": self.error}


def compare_memory(
    device: Device,
    networks: Sequence[str] | None = None,
    measure: Callable[[StepRequest], list[MeasuredStep]] = measure_steps,
) -> Iterator[Comparison]:
    """Predict and measure training steps, network by network, each in a process of its own.

    Networks are names out of `NETWORKS`; all that are installed if not given.
    """
    for name in NETWORKS if networks is None else networks:
        row = NETWORKS[name]
        if row.needs is None or importlib.util.find_spec(row.needs) is not None:
            try:
                yield from _compare(name, row, device, measure)
            except RanpError as error:  # the others are still worth knowing
                failed = MeasuredStep(failure=str(error)[:120])
                for optimizer, precision in WAYS:
                    yield Comparison(name, row.shape, optimizer, precision, 0, failed)


def _compare(
    name: str,
    row: Checked,
    device: Device,
    measure: Callable[[StepRequest], list[MeasuredStep]],
) -> list[Comparison]:
    """Predict and measure a network in all ways."""
    build = f"{__name__}:{build_checked.__name__}"
    measured = measure(StepRequest(build, [name], row.shape, WAYS, device=device))
    model = row.build()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # which kernels run, and what they take, depends on it
    try:
        predicted = [
            predict_training_memory(
                model,
                row.shape,
                optimizer=optimizer,
                precision=precision,
                loss=zero_label_loss,
                device=device,
            ).peak
            for optimizer, precision in WAYS
        ]
    finally:
        torch.set_num_threads(threads)
    return [
        Comparison(name, row.shape, *way, peak, found)
        for way, peak, found in zip(WAYS, predicted, measured, strict=True)
    ]


def keep_correction(device: Device, rows: Sequence[Comparison]) -> MemoryCorrection:
    """Store what predictions must be multiplied with so that none is too small, by precision.

    Raises:
        UsageError: No step could be measured; what was stored before stays.
    """
    if rows and all(row.measured.failure for row in rows):
        raise UsageError("no training step could be measured, so no correction was stored")
    constant = constant_bytes(device)
    factors: dict[str, float] = {}
    for row in rows:
        if not row.measured.failure:
            factor = (row.measured.peak - constant) / (row.predicted - constant)
            factors[row.precision] = max(factors.get(row.precision, 1.0), factor)
    name = device_name(torch.device(device))
    correction = MemoryCorrection(name, date.today().isoformat(), factors)
    save_correction(correction, device)
    return correction
