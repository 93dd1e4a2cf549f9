"""At inference a convolution can do what comes after it: a batch norm, or a softmax."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from ranp.graph.operation import tensors_in
from ranp.speed.replacing import replace_module

_Conv = nn.modules.conv._ConvNd
_BatchNorm = nn.modules.batchnorm._BatchNorm


@torch.no_grad()
def fold_norms(model: nn.Module, x: Tensor) -> list[str]:
    """Fold every batch norm into the convolution before it, in place; return their names.

    At inference it is a scale and a shift. The network must be in eval mode. Where a convolution's
    output also goes elsewhere than into the norm, the result would be another: compare it.
    """
    folded = []
    for name, conv in preceding_convolutions(
        model, x, lambda module: isinstance(module, _BatchNorm)
    ).items():
        norm = model.get_submodule(name)
        assert isinstance(norm, _BatchNorm)
        mean, variance = norm.running_mean, norm.running_var
        if mean is None or variance is None or (conv.transposed and conv.groups > 1):
            continue
        affine = (norm.eps, norm.weight, norm.bias)
        conv.weight, conv.bias = fuse_conv_bn_weights(
            conv.weight, conv.bias, mean, variance, *affine, transpose=conv.transposed
        )
        replace_module(model, norm, nn.Identity())
        folded.append(name)
    return folded


@torch.no_grad()
def preceding_convolutions(
    model: nn.Module, x: Tensor, is_wanted: Callable[[nn.Module], bool]
) -> dict[str, nn.modules.conv._ConvNd]:
    """Return modules whose input is the output of a convolution, and that convolution.

    Both are called once.
    """
    calls: dict[nn.Module, int] = {}
    outputs: list[tuple[Tensor, int, _Conv]] = []
    found: dict[nn.Module, _Conv] = {}

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        calls[module] = calls.get(module, 0) + 1
        if isinstance(module, _Conv) and isinstance(output, Tensor):
            outputs.append((output, _count_changes(output), module))
        elif args:
            # What was changed in place since, as by a ReLU, is the same tensor and not the same.
            for y, count, conv in outputs:
                if y is args[0] and count == _count_changes(y):
                    found.setdefault(module, conv)

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, _Conv) or is_wanted(module):
                hooks.enter_context(module.register_forward_hook(after))
        results = list(tensors_in(model(x)))
    # The outputs of the network itself must not change.
    outer = {conv for y, _, conv in outputs if any(y is out for out in results)}
    names = {module: name for name, module in model.named_modules()}
    return {
        names[module]: conv
        for module, conv in found.items()
        if calls[module] == calls[conv] == 1
        and conv not in outer
        and not nn.utils.parametrize.is_parametrized(conv)
        and "weight" in conv._parameters
    }


def _count_changes(x: Tensor) -> int:
    """Return how often a tensor was changed in place; those of inference mode do not count it."""
    return 0 if x.is_inference() else x._version
