"""Samples as tensors: where the NumPy readers meet torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ranp.datasets.registry import Reader

Key = tuple[int, int]
"""(epoch, index) of a sample: all that its randomness depends on, besides the seed."""

Sample = dict[str, Any]


class Cases(Dataset[Sample]):
    """A reader's cases as samples `{"x": tensor, "y": tensor, "id": str, ...}`.

    `cases[epoch, index]` is deterministic in (seed, epoch, index). A plain index, which is what
    a plain `DataLoader` asks for, means epoch 0.
    """

    def __init__(self, reader: Reader, seed: int = 0) -> None:
        self.reader = reader
        self.seed = seed
        self.ids = tuple(reader.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, key: int | Key) -> Sample:
        epoch, index = key if isinstance(key, tuple) else (0, key)
        if not 0 <= index < len(self):
            raise IndexError(f"case {index} of {len(self)}")
        # The same random numbers in any process, worker or resumed run.
        arrays = self.reader.read(index, np.random.default_rng([self.seed, epoch, index]))
        sample = {name: _as_tensor(value) for name, value in arrays.items()}
        return {**sample, "id": self.ids[index]}


def _as_tensor(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, int):
        return torch.tensor(value)
    return value
