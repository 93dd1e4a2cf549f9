"""The registry of networks: each network registers itself beside its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn

from ranp.errors import UsageError, lookup, register

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


@dataclass(frozen=True)
class NetworkSpec:
    """A named network and, where it is one of the paper's, the setting in which it is pruned there.

    Attributes:
        name: Name on the command line and in recipes.
        builder: Class or function that builds the network.
        options: Arguments of the builder that belong to the name.
        input_shape: One sample with its batch dimension, (1, channels, depth, height, width); empty
            for a family of networks, whose options recipes give.
        classes: Channels of the output; by default the option of that name.
        about: One-line description.
        dataset: Name of the data set that it is trained on.
        sparsity: Share of neurons that the paper removes.
        lam: lambda of Eq. 10 in the paper.
    """

    name: str
    builder: Callable[..., nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, ...] = ()
    classes: int = 0
    about: str = ""
    dataset: str = ""
    sparsity: float = 0.8
    lam: float = 11.0

    def build(self, **options: Any) -> nn.Module:
        """Build a new instance with PyTorch's default initialization.

        Args:
            options: Arguments of the builder, in place of or beside those of the spec.
        """
        arguments = {**self.options, **options}
        try:
            return self.builder(**arguments)
        except TypeError as error:
            raise UsageError(f"network '{self.name}' with {arguments}: {error}") from error


NETWORKS: dict[str, NetworkSpec] = {}
"""All registered networks by name."""


def register_network(name: str, **fields: Any) -> Callable[[Builder], Builder]:
    """Register the class or function below under a name.

    Args:
        name: Name on the command line and in recipes.
        fields: Other attributes of `NetworkSpec`.

    Example:
        >>> @register_network("tiny", input_shape=(1, 1, 16, 16, 16), classes=2, dataset="brats")
        ... def tiny() -> nn.Module:
        ...     return nn.Conv3d(1, 2, 3, padding=1)
        >>> find_network("tiny").build()
        Conv3d(1, 2, kernel_size=(3, 3, 3), stride=(1, 1, 1), padding=(1, 1, 1))
        >>> NETWORKS.pop("tiny").classes
        2
    """

    def decorate(builder: Builder) -> Builder:
        classes = fields.get("options", {}).get("classes", 0)
        spec = NetworkSpec(name, builder, **{"classes": classes, **fields})
        register(NETWORKS, name, spec, "network")
        return builder

    return decorate


def network_names() -> list[str]:
    """Return the names of the networks that have an input shape of their own."""
    return [name for name, spec in NETWORKS.items() if spec.input_shape]


def find_network(name: str) -> NetworkSpec:
    """Return the spec of a network; raise `UsageError` if there is none."""
    return lookup(NETWORKS, name, "network")


def build_network(name: str, **options: Any) -> nn.Module:
    """Build a registered network; see `NetworkSpec.build`."""
    return find_network(name).build(**options)
