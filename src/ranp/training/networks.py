"""The network of a configuration."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ranp import models
from ranp.training.config import NetworkConfig
from ranp.user_code import refuse_stored_code

Factory = Callable[..., nn.Module]


def build_network(config: NetworkConfig, factory: Factory | None = None) -> nn.Module:
    """Build the full network.

    A name such as `package.module:factory` stands for the factory, which must come from the command
    line or from code: a stored configuration alone imports nothing.
    """
    return find_spec(config, factory).build(**config.options)


def find_spec(config: NetworkConfig, factory: Factory | None = None) -> models.NetworkSpec:
    """Return how the full network is built; raise `UsageError` if its name is not known."""
    if factory is not None:
        return models.NetworkSpec(config.name, factory)
    refuse_stored_code(config.name)
    return models.find_network(config.name)
