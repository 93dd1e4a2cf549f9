"""Algorithm 1, first half: one pass over the data that scores every neuron."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ranp._version import __version__
from ranp.errors import UsageError
from ranp.graph import ChannelGraph, unwrap
from ranp.pruning.batches import (
    Forward,
    batch_size,
    checked_loss,
    is_out_of_memory,
    parts,
    to_device,
)
from ranp.pruning.criteria import grasp, magnitude, synflow
from ranp.pruning.identity import fingerprint
from ranp.pruning.mask_gradients import MaskGradients
from ranp.pruning.scores import Scores
from ranp.pruning.state import ScoringWeights, scoring_state
from ranp.recompute import checkpointed


def score(
    model: nn.Module,
    graph: ChannelGraph,
    loader: Iterable[Any],
    forward: Forward,
    *,
    statistics: Collection[str] = (),
    weights: ScoringWeights = "fresh",
    batches: int | None = None,
    enough: Callable[[Scores], bool] | None = None,
    seed: int = 0,
    resume: Scores | None = None,
) -> Scores:
    """Scores every neuron of a network over a loader's batches.

    Under `torch.distributed` every process takes every n-th batch of the same loader, nothing is
    padded, and one sum over processes gives all of them the same scores.

    Args:
        model: The model; it is given back as it was.
        graph: Its channel graph.
        loader: Yields batches.
        forward: From model and batch to a scalar loss.
        statistics: What to gather beyond `mpmg`, `mnmg` and `magnitude`: "abs", "signed", "grasp",
            "synflow" (see `Scores`).
        weights: The weights to score with (see `scoring_state`).
        batches: How many batches at the most; all if not given.
        enough: Looks at the scores of this process after each batch and says whether to stop.
        seed: For fresh weights and dropout.
        resume: Scores to go on from: as many batches are passed over, and the sums are joined.

    Raises:
        UsageError: An empty loader, a batch or loss of the wrong form.
        IntegrityError: A gradient that is not finite.
    """
    model = unwrap(model)
    gradients = MaskGradients(model, graph, statistics)
    rank, processes = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    first = (resume.batches if resume else 0) + rank
    device = next(model.parameters()).device
    with scoring_state(model, gradients.scored, weights, seed):
        scores = Scores(
            batches=0,
            fan_in=gradients.fan_in,
            sums=gradients.sums,
            weight_sums=gradients.weight_sums,
            constants={"magnitude": magnitude(model, graph)},
            settings={"weights": weights, "seed": seed, "ranp": __version__},
            fingerprint=fingerprint(graph),
        )
        if "synflow" in statistics:
            scores = replace(
                scores, constants={**scores.constants, "synflow": synflow(model, graph)}
            )
        backward = _Backward(model, gradients, forward)
        for i, batch in enumerate(islice(loader, first, batches, processes)):
            batch = to_device(batch, device)
            backward(batch, number=first + i * processes + 1)
            if "grasp" in statistics:
                gradients.add("grasp", grasp(model, graph, batch, forward))
            scores = replace(scores, batches=i + 1, sums=gradients.sums)
            if enough is not None and enough(scores):
                break
    if processes > 1:
        scores = _sum_over_processes(scores, device)
    if resume is not None:
        scores = resume + scores
    if scores.batches == 0:
        raise UsageError("the loader yields no batches: there is nothing to score with")
    return scores


class _Backward:
    """Forward and backward of a batch, in smaller steps once memory has run out."""

    def __init__(self, model: nn.Module, gradients: MaskGradients, forward: Forward) -> None:
        self.model = model
        self.gradients = gradients
        self.forward = forward
        self.pieces = 1
        self.recompute = False

    def __call__(self, batch: Any, number: int) -> None:
        while True:
            try:
                self._run(batch, number)
                return
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._economize(batch, error)

    def _run(self, batch: Any, number: int) -> None:
        pieces = min(self.pieces, batch_size(batch))
        memory = checkpointed(self.model) if self.recompute else nullcontext()
        with self.gradients.batch(number), memory:
            for i, (part, share) in enumerate(parts(batch, pieces), start=1):
                with self.gradients.part(last=i == pieces):
                    (checked_loss(self.forward(self.model, part)) * share).backward()  # type: ignore[no-untyped-call]

    def _economize(self, batch: Any, error: RuntimeError) -> None:
        """Halves the parts of a batch; once they are single samples, recomputes activations."""
        if self.pieces < batch_size(batch):
            self.pieces *= 2
            batch_norms = nn.modules.batchnorm._BatchNorm
            changes = any(isinstance(module, batch_norms) for module in self.model.modules())
            warnings.warn(
                f"out of memory while scoring: going on with batches in {self.pieces} parts"
                + ("; batch norm sees the parts, so scores change a little" if changes else ""),
                stacklevel=4,
            )
        elif not self.recompute:
            self.recompute = True
            warnings.warn(
                "out of memory while scoring: going on with activation checkpointing", stacklevel=4
            )
        else:
            raise UsageError(
                "out of memory while scoring a single sample with activation checkpointing; "
                "score at a smaller spatial size"
            ) from error


def _sum_over_processes(scores: Scores, device: torch.device) -> Scores:
    """One sum of everything over all processes; a process without batches adds zeros."""
    groups = [scores.sums, scores.weight_sums]
    tensors = [t for g in groups for by_layer in g.values() for t in by_layer.values()]
    count = torch.tensor([scores.batches], dtype=torch.float64)
    flat = torch.cat([t.reshape(-1).double() for t in [*tensors, count]]).to(device)
    dist.all_reduce(flat)
    pieces = iter(flat.cpu().split([t.numel() for t in [*tensors, count]]))

    def renewed(group: Any) -> dict[str, dict[str, Tensor]]:
        return {
            statistic: {name: next(pieces).reshape(t.shape).to(t) for name, t in by_layer.items()}
            for statistic, by_layer in group.items()
        }

    sums, weight_sums = renewed(scores.sums), renewed(scores.weight_sums)
    return replace(scores, batches=int(next(pieces)), sums=sums, weight_sums=weight_sums)
