"""The network class that slim plans name: nnU-Net builds every network through it."""

from __future__ import annotations

import pydoc
from collections.abc import Mapping
from typing import Any

from torch import nn

from ranp.errors import IntegrityError, UsageError
from ranp.integrations.nnunet.plans import parse_slim_entry
from ranp.slimming import Plan


def slim_network(
    *,
    input_channels: int,
    num_classes: int,
    ranp: Mapping[str, Any],
    deep_supervision: bool = False,
    **arch_kwargs: Any,
) -> nn.Module:
    """Build the slim network of a plans file.

    nnU-Net calls it in training and in prediction, with what stands in the plans' `arch_kwargs`,
    and initializes the weights afterwards. The predictor builds networks without deep supervision;
    the plan holds its heads, so the network is slimmed with them and the flag is set after that.

    Args:
        input_channels: Number of input channels.
        num_classes: Number of output channels.
        ranp: The full network's class, and the plan (see `SlimConfiguration`).
        deep_supervision: Whether the forward returns the outputs of all resolutions.
        arch_kwargs: Arguments of the full network's class.

    Raises:
        IntegrityError: The kept neurons do not belong to this network.
    """
    about = parse_slim_entry(ranp, "the 'ranp' entry of the plans")
    full = full_network(
        about.network_class_name, input_channels, num_classes, arch_kwargs | _WITH_HEADS
    )
    slim = Plan.from_dict(about.plan).apply(full, init="keep")
    set_deep_supervision(slim, deep_supervision)
    return slim


_WITH_HEADS = {"deep_supervision": True}


def full_network(
    class_name: str, input_channels: int, num_classes: int, arch_kwargs: Mapping[str, Any]
) -> nn.Module:
    """Build a network from the dotted name of its class."""
    network_class: Any = pydoc.locate(class_name)
    if network_class is None:
        raise UsageError(
            f"network class '{class_name}' cannot be imported; install the package that the plans "
            "were made with"
        )
    if not (isinstance(network_class, type) and issubclass(network_class, nn.Module)):
        raise IntegrityError(
            f"network class '{class_name}' must be a class of networks; nothing else is called"
        )
    return network_class(input_channels=input_channels, num_classes=num_classes, **arch_kwargs)


def set_deep_supervision(network: nn.Module, enabled: bool) -> None:
    """Switch deep supervision on or off, where nnU-Net's trainer does."""
    decoder = getattr(network, "decoder", None)
    if not hasattr(decoder, "deep_supervision"):
        raise IntegrityError(
            f"{type(network).__name__} has no 'decoder.deep_supervision', which nnU-Net's trainer "
            "sets; only its U-Nets can be pruned"
        )
    decoder.deep_supervision = enabled  # type: ignore[union-attr]
