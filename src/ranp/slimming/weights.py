"""Weights of slim networks as safetensors: no pickle, one file, checked on reading."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ranp.errors import IntegrityError
from ranp.files import load_tensors, save_tensors
from ranp.graph import named_tensors, shape_difference, tensor_shapes, unwrap


def save_weights(model: nn.Module, path: str | Path) -> None:
    """Save the parameters and buffers of a model to a safetensors file, atomically."""
    save_tensors(path, dict(named_tensors(model)), {"kind": "weights", **marks(model)})


def mark(model: nn.Module, **ids: str | None) -> None:
    """Record on a model which plan and run it belongs to; files of its weights carry that."""
    known = {name: value for name, value in ids.items() if value is not None}
    before = {} if "plan" in known else marks(model)  # a slimmed network has marks of its own
    vars(model)[_MARKS] = {**before, **known}


def marks(model: nn.Module) -> dict[str, str]:
    """Return what a model belongs to (see `mark`)."""
    return dict(vars(unwrap(model)).get(_MARKS, {}))


def check_marks(model: nn.Module, metadata: Mapping[str, str], path: str | Path) -> None:
    """Refuse a file of another plan or run than the model's; earlier versions left no marks."""
    for name, own in marks(model).items():
        if metadata.get(name, own) != own:
            raise IntegrityError(
                f"'{path}' belongs to another {name} than the model: {metadata[name][:12]} in the "
                f"file, {own[:12]} here; use the {name} that it was saved with"
            )


_MARKS = "_ranp_belongs_to"


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load weights into a model with the same shapes.

    Raises:
        IntegrityError: The file is damaged or belongs to another model. The message names the first
            difference, and the model is not changed.
    """
    tensors, metadata = load_tensors(path, "weights")
    if metadata.get("kind") != "weights":
        raise IntegrityError(
            f"'{path}' is not valid: field 'kind' is '{metadata.get('kind')}', expected 'weights'"
        )
    check_marks(model, metadata, path)
    copy_tensors(model, tensors, f"weights '{path}' are")


@torch.no_grad()
def copy_tensors(model: nn.Module, tensors: Mapping[str, Tensor], what: str) -> None:
    """Copy stored tensors into a model of the same shapes; refuse others, and leave it as it is.

    The message begins with `what`: the file that they are from, and a verb.
    """
    stored = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    difference = shape_difference(tensor_shapes(model), stored)
    if difference is not None:
        name, here, there = difference
        raise IntegrityError(
            f"{what} of another network: '{name}' is {there} in the file and {here} in the model"
        )
    for name, tensor in named_tensors(model):
        tensor.copy_(tensors[name])
