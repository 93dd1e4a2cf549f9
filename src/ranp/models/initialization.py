"""Initialisation of any network: Glorot-normal or orthogonal weights, and the batch norm policy.

The paper scores neurons with Glorot-normal weights and batch norm gammas drawn from U(0, 1);
gammas of one make the scores of plain neuron pruning collapse at far lower sparsities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ranp.errors import UsageError, check_one_of

Gamma = Literal["uniform", "ones"]
"""Batch norm scales: drawn from U(0, 1) as in the paper, or all one as PyTorch has them."""

_Draw = Callable[..., Tensor]

_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd)
_BATCH_NORMS = nn.modules.batchnorm._BatchNorm
_OTHER_NORMS = (nn.modules.instancenorm._InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def glorot_normal_(
    model: nn.Module, *, gamma: Gamma = "uniform", generator: torch.Generator | None = None
) -> None:
    """Initialize a network in place with weights from N(0, 2 / (fan_in + fan_out)).

    A convolution's fans are its channels times the volume of its kernel. Biases become 0,
    batch norms get their `gamma`, beta 0 and fresh running statistics, other norms become the
    identity. Modules of other kinds keep their parameters. Shared parameters stay shared and
    frozen ones frozen.

    Args:
        model: Any network.
        gamma: Batch norm scales: "uniform" draws them from U(0, 1) as the paper does, "ones" sets
            them to one.
        generator: Source of random numbers; PyTorch's global one if not given. The network may
            live on another device than the generator.
    """
    _initialize(model, nn.init.xavier_normal_, gamma, generator)


def orthogonal_(
    model: nn.Module, *, gamma: Gamma = "uniform", generator: torch.Generator | None = None
) -> None:
    """Initialize a network in place with orthogonal weights; the rest as `glorot_normal_` does.

    A weight of shape (a, b, ...) taken as an a x (b ...) matrix has orthonormal rows, or
    orthonormal columns where it has more rows than columns.
    """
    _initialize(model, nn.init.orthogonal_, gamma, generator)


INITIALIZERS: dict[str, Callable[..., None]] = {"fresh": glorot_normal_, "orthogonal": orthogonal_}
"""Ways to draw new weights, by the name that `prune` and plans have for them."""


def direction_norm(v: Tensor, g: Tensor) -> Tensor:
    """Return |v| of a weight norm w = g v / |v|, over the dimensions that g does not have."""
    over = [dim for dim in range(v.dim()) if not g.dim() or g.shape[dim] == 1]
    norm: Tensor = torch.linalg.vector_norm(v, dim=over)
    return norm.reshape(g.shape)


@torch.no_grad()
def _initialize(
    model: nn.Module, draw: _Draw, gamma: Gamma, generator: torch.Generator | None
) -> None:
    check_one_of("gamma", gamma, get_args(Gamma))
    for name, module in model.named_modules():
        if isinstance(module, _WEIGHTED):
            _initialize_weight(name, module, draw, generator)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, _BATCH_NORMS):
            module.reset_parameters()  # gamma 1, beta 0, running statistics of no batch
            if gamma == "uniform" and module.weight is not None:
                _fill(module.weight, nn.init.uniform_, generator)
        elif isinstance(module, _OTHER_NORMS):
            module.reset_parameters()


def _initialize_weight(
    name: str, module: nn.Module, draw: _Draw, generator: torch.Generator | None
) -> None:
    """Draw a module's weight, also where it is computed from other parameters."""
    own = dict(module.named_parameters(recurse=False))
    if "weight" in own:
        _fill(own["weight"], draw, generator)
    elif parametrize.is_parametrized(module, "weight"):
        weight = torch.empty_like(torch.as_tensor(module.weight))
        _fill(weight, draw, generator)
        try:
            module.weight = weight  # goes through the parametrization's right_inverse
        except (NotImplementedError, RuntimeError) as error:
            raise UsageError(
                f"cannot initialise '{name}': its parametrization has no right_inverse; "
                "remove it first (torch.nn.utils.parametrize.remove_parametrizations)"
            ) from error
    elif "weight_orig" in own:  # torch.nn.utils.spectral_norm
        _fill(own["weight_orig"], draw, generator)
    elif "weight_v" in own and "weight_g" in own:  # torch.nn.utils.weight_norm
        _fill(own["weight_v"], draw, generator)
        own["weight_g"].copy_(direction_norm(own["weight_v"], own["weight_g"]))
    else:
        raise UsageError(
            f"cannot initialise '{name}': its weight is not a parameter and not made by "
            "torch.nn.utils.parametrize, weight_norm or spectral_norm"
        )


def _fill(tensor: Tensor, draw: _Draw, generator: torch.Generator | None) -> None:
    """Draw into a tensor, by way of a copy where it cannot be drawn in place.

    That is where the generator is of another device, and for 16-bit numbers: there is no
    orthogonalisation of those, and no sense in other weights than the rounded 32-bit ones.
    """
    device = tensor.device if generator is None or tensor.is_meta else generator.device
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    if (device, dtype) == (tensor.device, tensor.dtype):
        draw(tensor, generator=generator)
    else:
        tensor.copy_(
            draw(torch.empty(tensor.shape, device=device, dtype=dtype), generator=generator)
        )
