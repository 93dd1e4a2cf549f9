"""Checkpoints: weights, optimizer and position in one safetensors file, sealed by a SHA-256.

One file is old or new as a whole, whenever the process is killed. Random numbers need no entry:
they follow from the seed and the position (see `loop`), and so does the learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ranp.errors import IntegrityError
from ranp.files import canonical_json, load_tensors, save_tensors
from ranp.graph import named_tensors
from ranp.schemas import parse_metadata
from ranp.slimming import check_marks, copy_tensors, marks

_SCHEMA = 1
_WEIGHTS, _OPTIMIZER = "model/", "optimizer/"


@dataclass
class Progress:
    """Progress of a run.

    Attributes:
        epoch: The epoch under way, from 1.
        batch: Batches of it that were trained on.
        loss: The sum of their losses.
        seconds: Spent in training and validation so far.
        best: The best value of the goal so far, and `best_epoch` when that was.
        history: One line per finished epoch.
    """

    epoch: int = 1
    batch: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    best: float | None = None
    best_epoch: int | None = None
    history: list[dict[str, Any]] = field(default_factory=list)


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    scaler: Mapping[str, Any],
) -> None:
    """Write a checkpoint, atomically; `scaler` is the state of the gradient scaler, or empty."""
    tensors = {_WEIGHTS + name: tensor for name, tensor in named_tensors(model)}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{_OPTIMIZER}{index}/{name}"] = value
    state = {"schema": _SCHEMA, "progress": asdict(progress), "scaler": dict(scaler)}
    content = {"kind": "checkpoint", "state": canonical_json(state), **marks(model)}
    save_tensors(path, tensors, content)


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> tuple[Progress, dict[str, Any]]:
    """Load a checkpoint into a network and, if given, its optimizer; return progress and scaler.

    Raises:
        IntegrityError: The file is damaged, no checkpoint, or of another network; the first
            difference is named, and nothing is changed.
    """
    tensors, metadata = load_tensors(path, "checkpoint")
    if metadata.get("kind") != "checkpoint":
        kind = metadata.get("kind", "tensors")
        raise IntegrityError(f"'{path}' holds {kind}, expected a checkpoint")
    state = parse_metadata(metadata, "state", "checkpoint", path)
    check_marks(model, metadata, path)
    weights = {n.removeprefix(_WEIGHTS): t for n, t in tensors.items() if n.startswith(_WEIGHTS)}
    copy_tensors(model, weights, f"checkpoint '{path}' is")
    if optimizer is not None:
        _load_optimizer(optimizer, tensors, path)
    known = {field.name for field in fields(Progress)}
    progress = {name: value for name, value in state["progress"].items() if name in known}
    return Progress(**progress), state["scaler"]


def _load_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], path: Path
) -> None:
    states: dict[int, dict[str, Tensor]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, tensor in tensors.items():
        if name.startswith(_OPTIMIZER):
            number, _, key = name.removeprefix(_OPTIMIZER).partition("/")
            index = int(number) if number.isdecimal() else len(parameters)
            like = parameters[index] if index < len(parameters) else None
            if like is None or (tensor.dim() and tensor.shape != like.shape):
                raise IntegrityError(
                    f"checkpoint '{path}' is not valid: field '{name}' belongs to no parameter of "
                    "the network; restore it or train again"
                )
            if tensor.dim():
                # In the parameter's own memory layout, as the optimizer would have created it.
                tensor = torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
            states.setdefault(index, {})[key] = tensor
    optimizer.load_state_dict(
        {"state": states, "param_groups": optimizer.state_dict()["param_groups"]}
    )
