"""Batches: what a loader may yield, the loss of a batch, and its parts where memory is short."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ranp.errors import UsageError, is_out_of_memory
from ranp.recompute import checkpointed
from ranp.user_code import blame, is_written_here

LossFunction = Callable[[Any, Any], Tensor]
Forward = Callable[[nn.Module, Any], Tensor]
Part = tuple[Any, float]
"""A part of a batch and its share of the batch's samples."""

_PAIRS = (
    ("x", "y"),
    ("image", "label"),
    ("input", "target"),
    ("inputs", "targets"),
    ("data", "target"),
)


def make_forward(loss: LossFunction | None, forward: Forward | None) -> Forward:
    """Return the function from model and batch to loss: the user's own, or `loss(model(x), y)`."""
    if forward is not None:
        _check_function(forward, "forward(model, batch)")

        @wraps(forward)
        def own(model: nn.Module, batch: Any) -> Tensor:
            with blame("forward(model, batch)"):
                return forward(model, batch)

        return own
    if loss is None:
        raise UsageError("give a loss(output, target), or a forward(model, batch) -> loss")
    _check_function(loss, "loss(output, target)")

    def default(model: nn.Module, batch: Any) -> Tensor:
        x, y = split_pair(batch)
        given = f"; it was given {_describe(x)} as input and {_describe(y)} as target"
        with blame("the forward pass or the loss", given):
            return loss(model(x), y)

    default.__name__ = name_of(loss)
    return default


def _check_function(function: Any, what: str) -> None:
    name = what.partition("(")[0]
    if isinstance(function, type):
        raise UsageError(
            f"{name} must be a function {what}, got the class {function.__name__}; "
            f"make an instance: {function.__name__}()"
        )
    if not callable(function):
        raise UsageError(f"{name} must be a function {what}, got {type(function).__name__}")


def _describe(value: Any) -> str:
    """Return the shape and type of a tensor; of anything else its class."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of a callable object; a lambda's line."""
    function = inspect.unwrap(function)
    if isinstance(function, partial):
        return name_of(function.func)
    name: str = getattr(function, "__name__", type(function).__name__)
    if name != "<lambda>":
        return name
    code = function.__code__
    at = f" at {Path(code.co_filename).name}:{code.co_firstlineno}"
    return f"lambda{at if is_written_here(code.co_filename) else ''}"  # a notebook has no lines


def split_pair(batch: Any) -> tuple[Any, Any]:
    """Return input and target of a batch that is a pair, or a mapping with usual names."""
    if isinstance(batch, Mapping):
        for x, y in _PAIRS:
            if x in batch and y in batch:
                return batch[x], batch[y]
        raise UsageError(
            f"a batch has the keys {', '.join(map(repr, batch))}; expected "
            f"{' or '.join(f'{x!r} and {y!r}' for x, y in _PAIRS)}, or a forward(model, batch)"
        )
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    shape = f" of length {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    raise UsageError(
        f"a batch is a {type(batch).__name__}{shape}; expected a pair (x, y), a mapping, "
        "or a forward(model, batch) that understands it"
    )


def to_device(batch: Any, device: torch.device) -> Any:
    """Move all tensors of a batch, and whatever else can be moved."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf.to(device) if hasattr(leaf, "to") else leaf
        if leaf.is_meta:
            raise UsageError("a batch is on the meta device and holds no values; load real data")
        if leaf.layout is not torch.strided:
            raise UsageError(f"a batch must be dense, got {leaf.layout}; call to_dense() on it")
        # One made in inference mode takes no part in gradients; a copy does.
        return leaf.clone().to(device) if leaf.is_inference() else leaf.to(device)

    return pytree.tree_map(move, batch)


def checked_loss(value: Any) -> Tensor:
    """Refuse a loss that backward cannot start from."""
    if not isinstance(value, Tensor):
        raise UsageError(f"the loss is a {type(value).__name__}; expected a scalar tensor")
    if value.numel() != 1:
        raise UsageError(
            f"the loss has the shape {tuple(value.shape)}; expected a scalar: take its mean"
        )
    if value.is_complex():
        raise UsageError(f"the loss must be real, got {value.dtype}; take its absolute value")
    if not value.requires_grad:
        raise UsageError("the loss does not depend on the network's weights; is it detached?")
    return value


def batch_size(batch: Any) -> int:
    """Return the number of samples: the length of the input, or of the first tensor; 1 if none."""
    tensors = _tensors(batch)
    with suppress(UsageError):  # only the user's own forward may know what it is made of
        tensors = _tensors(split_pair(batch)[0]) or tensors
    return tensors[0].shape[0] if tensors else 1


def check_samples(batch: Any) -> None:
    """Refuse a batch that cannot be split into samples."""
    if not _tensors(batch):
        raise UsageError(
            f"cannot take a {type(batch).__name__} apart into samples: a batch must be a tensor, "
            "or a tuple, list or dictionary of them; or let the loader yield single samples"
        )


def _tensors(batch: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(batch)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0]


def samples(batch: Any, rows: slice) -> Any:
    """Return some of a batch's samples.

    Tensors whose first dimension is that of the batch are sliced; everything else stays.
    """
    size = batch_size(batch)

    def taken(leaf: Any) -> Any:
        whole = not isinstance(leaf, Tensor) or leaf.dim() == 0 or leaf.shape[0] != size
        return leaf if whole else leaf[rows]

    return pytree.tree_map(taken, batch)


def split_into_parts(batch: Any, pieces: int) -> list[Part]:
    """Split a batch into parts of at least one sample each (see `samples`)."""
    size = batch_size(batch)
    if pieces == 1 or size == 0:
        return [(batch, 1.0)]
    chunks = torch.arange(size).tensor_split(min(pieces, size))
    return [(samples(batch, slice(int(c[0]), int(c[-1]) + 1)), len(c) / size) for c in chunks]


class OutOfMemoryFallback:
    """Runs steps on whole batches for as long as memory allows, then in ever smaller parts.

    What it has learned about memory holds for all later batches.

    Attributes:
        pieces: Into how many parts batches are split; smaller ones into single samples.
        recompute: Whether activations are computed again instead of kept.
    """

    def __init__(self, model: nn.Module, *, single: bool, recompute: bool) -> None:
        self._model = model
        self.pieces = sys.maxsize if single else 1
        self.recompute = recompute

    def __call__(self, batch: Any, step: Callable[[Sequence[Part]], None]) -> None:
        """Run a step on the parts of a batch, again with smaller ones if memory runs out.

        The step must leave nothing behind when it fails.
        """
        while True:
            memory = checkpointed(self._model) if self.recompute else nullcontext()
            try:
                with memory:
                    step(split_into_parts(batch, self.pieces))
                return
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._use_less_memory(batch, error)

    def _use_less_memory(self, batch: Any, error: Exception) -> None:
        if self.pieces < (size := batch_size(batch)):
            self.pieces *= 2
            batch_norms = nn.modules.batchnorm._BatchNorm
            changes = any(isinstance(module, batch_norms) for module in self._model.modules())
            advice = f"batches in {min(self.pieces, size)} parts" + (
                "; batch norm sees the parts, so scores change a little" if changes else ""
            )
        elif not self.recompute:
            self.recompute = True
            advice = "activation checkpointing"
        else:
            raise UsageError(
                "out of memory while scoring a single sample with activation checkpointing; "
                "score at a smaller spatial size"
            ) from error
        warnings.warn(f"out of memory while scoring: continuing with {advice}", stacklevel=4)


def check_batches(batches: int | None) -> None:
    """Refuse a number of batches that is none."""
    if batches is not None and (not isinstance(batches, int) or batches < 1):
        raise UsageError(f"batches must be a positive integer, got {batches!r}")
