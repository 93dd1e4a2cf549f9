"""The network of a configuration."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ranp import models
from ranp.errors import UsageError
from ranp.training.config import NetworkConfig

Factory = Callable[..., nn.Module]


def build_network(config: NetworkConfig, factory: Factory | None = None) -> nn.Module:
    """Build the full network.

    Args:
        config: Name and options of the network.
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
