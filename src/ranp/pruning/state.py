"""The state in which a model is scored, and restored afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import nn

from ranp.errors import check_one_of
from ranp.graph.surgery import preserve_state, training_mode
from ranp.models.initialization import INITIALIZERS

ScoringWeights = Literal["fresh", "orthogonal", "given"]


@contextmanager
def scoring_state(
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
