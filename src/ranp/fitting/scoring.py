"""Scores the full network without running out of memory: what does not fit is not started.

The network that is to be slimmed does not fit, or one would not slim it; but scoring is one pass
over small data. Scores depend little on the size of the volumes (the paper prunes BraTS at 96^3 and
trains at 128^3), so the loader may yield smaller ones than those that are trained with.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ranp.errors import TraceError
from ranp.fitting.machine import check_fits, fits
from ranp.graph import unwrap
from ranp.pipeline import Scoring, Traced
from ranp.pruning import Choice, Forward
from ranp.pruning.batches import batch_size, samples
from ranp.resources import predict_training_memory
from ranp.resources.training_memory import LossNotCounted

_SMALLEST_EDGE = 24
"""Edge of the smallest volumes to score with; smaller ones show nothing."""

_SCORING_GFLOPS = 200.0
"""What scoring may cost at the size that is chosen for it, in forward and backward passes."""


def scoring_size(
    traced: Traced,
    shape: tuple[int, ...],
    volume: Callable[[int], tuple[int, int, int]],
    number: int,
) -> tuple[int, int]:
    """Return the edge of the volumes to score with, and how many to score together.

    The largest of the training size, its half, its quarter and so on with which scoring a number of
    samples is quick and fits this machine. Two samples go together where a single one leaves batch
    norm a single voxel. `shape` is that of one sample in training, with its batch dimension;
    `volume` maps an edge to depth, height and width.
    """
    device = next(traced.model.parameters()).device
    _, channels, *_, largest = shape
    gflops = 3 * number * traced.chooser(Choice.make()).costs().gflops
    edge, best = largest, (largest, 1)
    while edge >= _SMALLEST_EDGE or edge == largest:
        space = volume(edge)
        share = math.prod(space) / math.prod(volume(largest))
        for together in (1, 2):
            try:
                memory = predict_training_memory(
                    traced.model, (together, channels, *space), optimizer="momentum"
                )
            except TraceError:
                continue  # too small for this network
            best = (edge, together)
            if gflops * share <= _SCORING_GFLOPS and fits(memory.peak, device):
                return best
            break
        edge //= 2
    return best


def within_memory(model: nn.Module, batch: Any, scoring: Scoring) -> tuple[Scoring, list[str]]:
    """Return how to score with the memory that there is: by single samples, by recomputing.

    Returns:
        How to score the full network, and a note if that is not as asked for.

    Raises:
        InfeasibleError: Not even a single sample with recomputing fits.
    """
    model = unwrap(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    sample = samples(batch, slice(0, 1))

    def fits_here(batch: Any) -> bool:
        return fits(_scoring_bytes(model, batch, scoring.forward, device, False), device)

    is_single = scoring.per == "sample" or batch_size(batch) == 1
    if fits_here(sample if is_single else batch):
        return scoring, []
    ways = []
    found = replace(scoring, per=scoring.per if is_single else "sample")
    if not is_single:
        ways.append("single samples")
    if is_single or not fits_here(sample):
        found = replace(found, recompute=True)
        ways.append("activation checkpointing")
        check_fits(
            _scoring_bytes(model, sample, scoring.forward, device, True),
            device,
            "scoring a single sample with activation checkpointing",
            "score with smaller crops than those you train with",
        )
    return found, [f"scored with {' and '.join(ways)}, to fit this machine"]


def _scoring_bytes(
    model: nn.Module, batch: Any, forward: Forward | None, device: torch.device, recompute: bool
) -> int:
    """Predict the memory of scoring: gradients, and sums as large as the weights, as momentum."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossNotCounted)  # warned of with the training step
        return predict_training_memory(
            model,
            batch,
            forward=forward,
            optimizer="momentum",
            recompute=recompute,
            device="cuda" if device.type == "cuda" else "cpu",
        ).peak
