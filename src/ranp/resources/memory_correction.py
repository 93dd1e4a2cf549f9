"""How far predictions of memory are off on a device, as it was measured there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ranp.files import write_sealed_json
from ranp.resources.machine import describe_machine
from ranp.resources.timing_cache import cache_directory, cache_key, read_measured
from ranp.resources.training_memory import CUDA_CONTEXT, Device


@dataclass(frozen=True)
class MemoryCorrection:
    """Factors that correct predicted memory on a device.

    Attributes:
        device: Name of the device.
        date: When it was measured.
        factors: Factors by precision; at least 1, as what is predicted is certainly allocated.
    """

    device: str
    date: str
    factors: Mapping[str, float]

    def corrected(self, peak: int, precision: str, device: Device) -> int:
        """Return a predicted peak as it would be measured; the CUDA context stays as it is."""
        constant = constant_bytes(device)
        return constant + int(self.factors.get(precision, 1.0) * (peak - constant))


def constant_bytes(device: Device) -> int:
    """Return what any network takes, however small: on CUDA, the context."""
    return CUDA_CONTEXT if device == "cuda" else 0


def save_correction(correction: MemoryCorrection, device: Device) -> Path:
    """Keep a correction for this machine and this version of PyTorch."""
    path = _path(device)
    write_sealed_json(path, {"kind": "memory-correction", "schema": 1, **asdict(correction)})
    return path


def load_correction(device: Device) -> MemoryCorrection | None:
    """Return the correction that was measured on this machine; None if none was."""
    if device == "cuda" and not torch.cuda.is_available():
        return None
    found = read_measured(_path(device), "memory-correction")
    if found is None:
        return None
    return MemoryCorrection(found["device"], found["date"], found["factors"])


def _path(device: Device) -> Path:
    machine = {**describe_machine(torch.device(device)), "threads": 1}
    return cache_directory() / "memory" / f"{cache_key(machine)}.json"
