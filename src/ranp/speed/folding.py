"""At inference a batch norm is a scale and a shift: the convolution before it can do both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

_Conv = nn.modules.conv._ConvNd
_BatchNorm = nn.modules.batchnorm._BatchNorm


@torch.no_grad()
def fold_norms(model: nn.Module, x: Tensor) -> list[str]:
    """Folds every batch norm into the convolution whose output it takes, in place.

    Args:
        model: In eval mode. Where a convolution's output also goes elsewhere than into the norm,
            the result would be another: compare it.
        x: An input.

    Returns:
        The names of the norms that are gone.
    """
    pairs = _pairs(model, x)
    for norm_name, conv in pairs.items():
        norm = model.get_submodule(norm_name)
        assert isinstance(norm, _BatchNorm)
        assert norm.running_mean is not None and norm.running_var is not None
        weight, bias = fuse_conv_bn_weights(
            conv.weight,
            conv.bias,
            norm.running_mean,
            norm.running_var,
            norm.eps,
            norm.weight,
            norm.bias,
            transpose=conv.transposed,
        )
        conv.weight, conv.bias = weight, bias
        parent, _, attribute = norm_name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, nn.Identity())
    return list(pairs)


def _pairs(model: nn.Module, x: Tensor) -> dict[str, nn.modules.conv._ConvNd]:
    """Norms whose input is just what a convolution gave; both called once."""
    calls: dict[nn.Module, int] = {}
    outputs: list[tuple[Tensor, _Conv]] = []
    found: dict[nn.Module, _Conv] = {}

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        calls[module] = calls.get(module, 0) + 1
        if isinstance(module, _Conv):
            outputs.append((output, module))
        elif args:
            before = (conv for tensor, conv in outputs if tensor is args[0])
            conv = next(before, None)
            if conv is not None:
                found[module] = conv

    watched = [m for m in model.modules() if isinstance(m, _Conv) or _is_foldable(m)]
    hooks = [module.register_forward_hook(after) for module in watched]
    try:
        model(x)
    finally:
        for hook in hooks:
            hook.remove()
    names = {module: name for name, module in model.named_modules()}
    return {
        names[norm]: conv
        for norm, conv in found.items()
        if calls[norm] == calls[conv] == 1
        and not nn.utils.parametrize.is_parametrized(conv)
        and "weight" in conv._parameters
        and (not conv.transposed or conv.groups == 1)
    }


def _is_foldable(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.running_mean is not None
