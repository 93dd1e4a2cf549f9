"""Weights of slim networks as safetensors: no pickle, one file, checked on reading."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ranp.errors import IntegrityError
from ranp.files import load_tensors, save_tensors
from ranp.graph import named_tensors


def save_weights(model: nn.Module, path: str | Path) -> None:
    """Write a model's parameters and buffers, shared ones once, atomically."""
    save_tensors(path, dict(named_tensors(model)), {"kind": "weights"})


@torch.no_grad()
def load_weights(model: nn.Module, path: str | Path) -> None:
    """Read weights into a model of the same shapes.

    Raises:
        IntegrityError: The file is damaged or of another model; the first difference is named, and
            the model is not changed.
    """
    tensors, metadata = load_tensors(path, "weights")
    if metadata.get("kind") != "weights":
        raise IntegrityError(
            f"'{path}' is not valid: field 'kind' is '{metadata.get('kind')}', expected 'weights'"
        )
    own = dict(named_tensors(model))
    for name in dict.fromkeys([*own, *tensors]):
        here = tuple(own[name].shape) if name in own else "missing"
        there = tuple(tensors[name].shape) if name in tensors else "missing"
        if here != there:
            raise IntegrityError(
                f"weights '{path}' are of another network: '{name}' is {there} in the file and "
                f"{here} in the model"
            )
    for name, tensor in own.items():
        tensor.copy_(tensors[name])
