"""The state in which a model is scored, and restored afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import nn

from ranp.errors import UsageError
from ranp.graph.surgery import training_mode
from ranp.models.initialization import INITIALIZERS

ScoringWeights = Literal["fresh", "orthogonal", "given"]


@contextmanager
def scoring_state(
    model: nn.Module, scored: Iterable[nn.Parameter], weights: ScoringWeights, seed: int
) -> Iterator[None]:
    """Put a model into the state in which it is scored, and restore it afterwards.

    Train mode, as in the paper; only scored parameters ask for gradients. The model's own weights
    are replaced by Glorot-normal ("fresh") or orthogonal ones, with batch norm scales from U(0, 1),
    unless they are "given". Modes, running statistics and other buffers, `requires_grad`,
    gradients, weights, whatever else modules remember, and the state of the random number
    generators are set back, whatever happens.
    """
    if weights not in get_args(ScoringWeights):
        raise UsageError(f"weights must be 'fresh', 'orthogonal' or 'given', got '{weights}'")
    wanted = {id(parameter) for parameter in scored}
    parameters = [(p, p.requires_grad, p.grad, p.data) for p in model.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    # A forward may put another tensor in a buffer's place, count, or keep activations: each of
    # these dictionaries and lists gets back what it held.
    restore_all = []
    for module in model.modules():
        own = (value for name, value in vars(module).items() if name not in _MODULE_ATTRIBUTES)
        containers = [value for value in own if isinstance(value, (dict, list))]
        restore_all += [_snapshot(each) for each in (module._buffers, vars(module), *containers)]
    devices = {p.device for p, *_ in parameters if p.device.type != "cpu"}
    with torch.random.fork_rng(sorted(devices, key=str)), training_mode(model, training=True):
        try:
            for parameter, *_ in parameters:
                parameter.requires_grad_(id(parameter) in wanted)
                parameter.grad = None
                if weights != "given":
                    parameter.data = parameter.data.clone()
            if weights != "given":
                INITIALIZERS[weights](
                    model, gamma="uniform", generator=torch.Generator().manual_seed(seed)
                )
            torch.manual_seed(seed)
            yield
        finally:
            with torch.no_grad():
                for parameter, wants_grad, grad, data in parameters:
                    parameter.data = data
                    parameter.grad = grad
                    parameter.requires_grad_(wants_grad)
                for buffer, before in buffers:
                    buffer.copy_(before)
            for restore in restore_all:
                restore()


_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes that every module has: parameters, buffers, hooks."""


def _snapshot(container: dict[Any, Any] | list[Any]) -> Callable[[], None]:
    """Return a function that restores the present contents of a container."""
    before = container.copy()

    def restore() -> None:
        container.clear()
        if isinstance(container, list):
            container.extend(before)
        else:
            container.update(before)

    return restore
