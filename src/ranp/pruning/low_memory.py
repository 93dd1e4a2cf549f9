"""What to do when memory runs out: smaller parts of a batch, then recomputed activations."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import nn

from ranp.errors import UsageError, is_out_of_memory
from ranp.pruning.batches import Part, batch_size, split_into_parts
from ranp.recompute import checkpointed


class OutOfMemoryFallback:
    """Runs steps on whole batches for as long as memory allows, then in ever smaller parts.

    What it has learned about memory holds for all later batches.

    Attributes:
        pieces: Into how many parts batches are split; smaller ones into single samples.
        recompute: Whether activations are computed again instead of kept.
    """

    def __init__(self, model: nn.Module, *, single: bool = False) -> None:
        """Begin with whole batches, or with single samples."""
        self._model = model
        self.pieces = sys.maxsize if single else 1
        self.recompute = False

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
        warnings.warn(f"out of memory while scoring: going on with {advice}", stacklevel=4)
