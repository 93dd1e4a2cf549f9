"""The network of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ranp import models
from ranp.errors import TraceError, UsageError
from ranp.graph import build_graph
from ranp.models import glorot_normal_
from ranp.resources import count
from ranp.slimming import Plan
from ranp.training.config import NetworkConfig

Factory = Callable[..., nn.Module]


def build_network(config: NetworkConfig, factory: Factory | None = None) -> nn.Module:
    """Builds the full network.

    Args:
        config: Its name and options.
        factory: What a name such as `package.module:factory` stands for. It must come from the
            command line or from code: a stored configuration alone imports nothing.
    """
    if factory is None and ":" in config.name:
        raise UsageError(
            f"the network is code of yours; name it again: --network {config.name} "
            "(a stored file alone must not import code)"
        )
    spec = models.NetworkSpec(config.name, factory) if factory else models.find_network(config.name)
    return spec.build(**config.options)


def fresh_network(full: nn.Module, plan: Plan | None, *, transfer: bool, seed: int) -> nn.Module:
    """The network to train, full or slim, with fresh Glorot-normal weights as in the paper.

    Args:
        full: The full network.
        plan: What is kept of it; none keeps all.
        transfer: Whether the plan may be of a network with other inputs and classes.
        seed: For the weights.
    """
    if plan is not None:
        return plan.apply(full, init="fresh", seed=seed, transfer=transfer)
    glorot_normal_(full, gamma="ones", generator=torch.Generator().manual_seed(seed))
    return full


def costs(model: nn.Module, shape: tuple[int, ...]) -> dict[str, Any] | None:
    """A network's costs by the paper's rules; none where it cannot be traced."""
    try:
        return count(model, build_graph(model, shape)).totals()
    except TraceError:
        return None
