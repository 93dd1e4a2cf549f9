"""How far predictions of memory are off on a device, as it was measured there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ranp.errors import IntegrityError
from ranp.files import canonical_json, sha256, write_sealed_json
from ranp.resources.machine import describe_machine
from ranp.resources.timing_cache import cache_directory
from ranp.resources.training_memory import CUDA_CONTEXT, Device
from ranp.schemas import read_file

_KEY_DIGITS = 24


@dataclass(frozen=True)
class MemoryCorrection:
    """What predicted memory is multiplied with on a device.

    Attributes:
        device: Name of the device.
        date: When it was measured.
        factors: By precision; at least 1, as what is predicted is alive for certain.
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
    path = _path(device)
    if not path.exists():
        return None
    try:
        found = read_file(path, "memory-correction")
    except IntegrityError:
        path.unlink(missing_ok=True)  # damaged: it can be measured again
        return None
    return MemoryCorrection(found["device"], found["date"], found["factors"])


def _path(device: Device) -> Path:
    machine = {**describe_machine(torch.device(device)), "threads": 1}
    key = sha256(canonical_json(machine))[:_KEY_DIGITS]
    return cache_directory() / "memory" / f"{key}.json"
