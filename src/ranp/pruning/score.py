"""Algorithm 1, first half: one pass over the data that scores every neuron."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import nn

from ranp._version import __version__
from ranp.errors import IntegrityError, UsageError, check_one_of
from ranp.graph import ChannelGraph, check_values, unwrap
from ranp.graph.surgery import preserve_state, training_mode
from ranp.models.initialization import INITIALIZERS
from ranp.pruning.batches import (
    Forward,
    OutOfMemoryFallback,
    Part,
    check_batches,
    check_samples,
    checked_loss,
    to_device,
)
from ranp.pruning.distributed import own_batches, sum_over_processes
from ranp.pruning.mask_gradients import MaskGradients
from ranp.pruning.methods import Method, statistics_for
from ranp.pruning.scores import Scores, fingerprint
from ranp.pruning.statistics import Once, PerBatch
from ranp.pruning.weights import LayerWeights

ScoringWeights = Literal["fresh", "orthogonal", "given"]
Per = Literal["batch", "sample"]
"""What a magnitude of Eq. 6 is taken of: a batch's gradient, or that of each of its samples."""


@dataclass(frozen=True)
class Scoring:
    """How a network is scored.

    Attributes:
        forward: `forward(model, batch)` -> scalar loss; None for methods without data.
        batches: Maximum number of batches to score; None for all.
        until_stable: Whether to stop when the kept neurons no longer change; where it is not
            known yet how many are kept, after 16 batches.
        per: Whether whole batches are scored, or their samples one by one.
        weights: "fresh" or "orthogonal" for new ones, "given" for the model's own.
        seed: Seed of fresh weights and dropout.
        recompute: Whether activations are recomputed instead of kept, to save memory.
        source: What the batches are made of, to be kept with the scores.
        resume: Scores of the first batches, to go on from.
        scores: Scores that exist already: nothing is scored.
    """

    forward: Forward | None = None
    batches: int | None = None
    per: Per = "batch"
    weights: ScoringWeights = "fresh"
    seed: int = 0
    until_stable: bool = False
    recompute: bool = False
    source: Mapping[str, Any] = field(default_factory=dict)
    resume: Scores | None = None
    scores: Scores | None = None


def score(
    model: nn.Module,
    graph: ChannelGraph,
    loader: Iterable[Any] | None,
    scoring: Scoring,
    methods: Iterable[Method] = (),
    *,
    enough: Callable[[Scores], bool] | None = None,
) -> Scores:
    """Score every neuron of a network, which is not changed, over a loader's batches.

    Under `torch.distributed` each process takes its share of the batches, nothing is padded, and
    one sum over processes gives all of them the same scores. Random numbers (dropout) depend on
    the seed and the batch's number alone: it does not matter which process scores a batch, or
    whether scoring was resumed before it.

    Without a loader the weights alone are scored (`magnitude`, `synflow`). `enough` is called with
    the scores of this process after each batch, and returns whether to stop. Of scores to resume
    from as many batches are skipped, and their sums are added; scores of another source cannot be.

    Raises:
        UsageError: An empty loader, a batch or loss of the wrong form, or scores to go on from
            that were taken in another way.
        IntegrityError: A gradient that is not finite, or a batch that gives no signal.
    """
    seed, per, resume = scoring.seed, scoring.per, scoring.resume
    check_batches(scoring.batches)
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise UsageError(f"seed must be between 0 and 2^63 - 1, got {seed!r}")
    check_one_of("per", per, get_args(Per))
    statistics = statistics_for(methods)
    own_passes = [each for each in statistics if isinstance(each, PerBatch)]
    model = unwrap(model)
    check_values(model)
    with training_mode(model, training=False):  # looking at a spectral norm trains it otherwise
        layer_weights = LayerWeights(model, graph)
    if not layer_weights.parameters:
        raise UsageError("the model has no convolution or linear layer to score")
    device = layer_weights.parameters[0].device
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        _scoring_state(model, layer_weights.parameters, scoring.weights, seed),
    ):
        gradients = MaskGradients(layer_weights, statistics)
        scores = Scores(
            batches=0,
            fan_in=gradients.fan_in,
            sums=gradients.sums,
            weight_sums=gradients.weight_sums,
            constants={
                each.name: each.compute(model, graph, layer_weights)
                for each in statistics
                if isinstance(each, Once)
            },
            settings={"weights": scoring.weights, "seed": seed, "per": per, "ranp": __version__}
            | dict(scoring.source),
            fingerprint=fingerprint(graph),
        )
        if resume is not None:
            resume.check_compatible(scores)
        step = _Step(model, scoring, layer_weights, gradients)
        fallback = OutOfMemoryFallback(model, single=per == "sample", recompute=scoring.recompute)
        done = resume.batches if resume else 0
        for number, batch in own_batches(() if loader is None else loader, done, scoring.batches):
            batch = to_device(batch, device)
            if per == "sample":
                check_samples(batch)
            fallback(batch, partial(step.mask_gradients, number))
            for each in own_passes:
                fallback(batch, partial(step.own_passes, number, each))
            scores = replace(scores, batches=scores.batches + 1)
            if enough is not None and enough(scores):
                break
    scores = sum_over_processes(scores, device)
    if resume is not None:
        scores = resume + scores
    if scores.batches == 0 and loader is not None:
        raise UsageError("the loader is empty: it yields no batches to score with")
    return scores


@contextmanager
def _scoring_state(
    model: nn.Module, scored: Iterable[nn.Parameter], weights: ScoringWeights, seed: int
) -> Iterator[None]:
    """Put a model into the state in which it is scored, and restore it afterwards.

    Train mode, as in the paper; only scored parameters ask for gradients. The model's own weights
    are replaced by Glorot-normal ("fresh") or orthogonal ones, with batch norm scales from U(0, 1),
    unless they are "given".
    """
    check_one_of("weights", weights, get_args(ScoringWeights))
    wanted = {id(parameter) for parameter in scored}
    with preserve_state(model), training_mode(model, training=True):
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in wanted)
            parameter.grad = None
            if weights != "given":
                parameter.data = parameter.data.clone()
        if weights != "given":
            generator = torch.Generator().manual_seed(seed)
            INITIALIZERS[weights](model, gamma="uniform", generator=generator)
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True)
class _Step:
    """What is done with each batch, given in parts."""

    model: nn.Module
    scoring: Scoring
    weights: LayerWeights
    gradients: MaskGradients

    @property
    def _forward(self) -> Forward:
        assert self.scoring.forward is not None
        return self.scoring.forward

    def mask_gradients(self, number: int, parts: Sequence[Part]) -> None:
        """Run forward and backward; the mask gradients are taken on the way."""
        self._set_random_state(number)
        losses = []
        with self.gradients.batch(number + 1):
            for i, (part, share) in enumerate(parts, start=1):
                with self.gradients.part(ends=self.scoring.per == "sample" or i == len(parts)):
                    loss = checked_loss(self._forward(self.model, part))
                    losses.append(loss.item())
                    (loss * share).backward()
            if not any(map(math.isfinite, losses)):  # a part alone may hold no label
                raise IntegrityError(
                    f"the loss is {losses[0]} in batch {number + 1}; look for labels that are all "
                    "ignored, a batch without samples, or inputs that are too large"
                )

    def own_passes(self, number: int, statistic: PerBatch, parts: Sequence[Part]) -> None:
        """Gather a statistic that runs its own passes."""
        self._set_random_state(number)
        values = statistic.compute(self.model, self.weights, parts, self._forward)
        self.gradients.add(statistic.name, values)

    def _set_random_state(self, number: int) -> None:
        """Seed a batch: the same in any process, at any retry and in any resumed run."""
        seeds = np.random.SeedSequence([self.scoring.seed, number])
        torch.manual_seed(int(seeds.generate_state(1)[0]))
