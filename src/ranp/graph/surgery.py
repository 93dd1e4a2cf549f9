"""Rebuilding a model around smaller tensors. The given model is never changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from ranp.errors import TraceError


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A model's parameters, then its buffers; shared ones once, under their first name."""
    yield from model.named_parameters()
    yield from model.named_buffers()


@contextmanager
def training_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Sets train or eval mode without running the model's own `train`, and sets it back."""
    before = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in before:
            module.training = training
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


@contextmanager
def swapped_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Puts other tensors in the place of parameters and buffers, and puts them back."""
    new = {id(tensor): tensors[name] for name, tensor in named_tensors(model)}
    stores: list[dict[str, Any]] = [
        store for module in model.modules() for store in (module._parameters, module._buffers)
    ]
    slots = [(store, name, t) for store in stores for name, t in store.items() if t is not None]
    try:
        for store, name, tensor in slots:
            store[name] = new[id(tensor)]
        yield
    finally:
        for store, name, tensor in slots:
            store[name] = tensor


def meta_copy(model: nn.Module) -> nn.Module:
    """A copy of a model's structure without data, to be traced in the model's place."""
    return rebuild(model, lambda _, tensor: tensor.to("meta"), {})


def rebuild(
    model: nn.Module, replace: Callable[[str, Tensor], Tensor], widths: Mapping[str, int]
) -> nn.Module:
    """Copies a model's structure, with other tensors in the place of its parameters and buffers.

    The full-size tensors are never copied: deep copying finds their replacements already made.
    Forward and backward hooks are copied as deep copying does: functions are shared, bound
    methods of the model's own modules are bound to the copies.

    Args:
        model: The model to copy.
        replace: Makes the replacement of a named parameter or buffer.
        widths: New channel numbers for modules that have no tensor to read them from
            (normalisation without weights).
    """
    memo: dict[int, object] = {}
    for name, tensor in named_tensors(model):
        new = replace(name, tensor)
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, requires_grad=tensor.requires_grad and new.is_floating_point())
        memo[id(tensor)] = new
    for module in model.modules():
        for value in vars(module).values():
            # Results that a module remembers (a weight computed by a hook) are not parameters and
            # cannot be copied while they belong to an autograd graph.
            if isinstance(value, Tensor) and id(value) not in memo and not value.is_leaf:
                memo[id(value)] = value.detach()
    try:
        slim = copy.deepcopy(model, memo)
    except Exception as error:
        raise TraceError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}); "
            "take out of the model what cannot be deep-copied, or give it a __deepcopy__"
        ) from error
    with training_mode(slim, False), torch.no_grad():  # reading a spectral norm must not train it
        for name, module in slim.named_modules():
            _recompute_weights(module)
            _update_attributes(module, widths.get(name))
    return slim


def _recompute_weights(module: nn.Module) -> None:
    """Weight and spectral norm of the older kind leave their last result in the module."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            setattr(module, hook.name, hook.compute_weight(module))
        elif isinstance(hook, SpectralNorm):
            setattr(module, hook.name, hook.compute_weight(module, do_power_iteration=False))


def _update_attributes(module: nn.Module, width: int | None) -> None:
    """Brings the numbers that a module keeps about itself in line with its tensors."""
    if isinstance(module, nn.modules.conv._ConvNd):
        weight = module.weight
        if module.transposed:
            inputs, per_group = weight.shape[:2]
            depthwise = module.groups == module.in_channels > 1
            module.groups = inputs if depthwise else module.groups
            module.in_channels, module.out_channels = inputs, per_group * module.groups
        else:
            outputs, per_group = weight.shape[:2]
            if module.groups == module.in_channels > 1:
                module.groups = outputs // (module.out_channels // module.in_channels)
            module.in_channels, module.out_channels = per_group * module.groups, outputs
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        reference = module.weight if module.affine else module.running_mean
        if reference is not None:
            module.num_features = reference.shape[0]
        elif width is not None:
            module.num_features = width
    elif isinstance(module, nn.GroupNorm):
        channels = module.weight.shape[0] if module.affine else width
        if channels is not None:
            if module.num_groups == module.num_channels:
                module.num_groups = channels
            module.num_channels = channels
    elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        if module.elementwise_affine:
            module.normalized_shape = tuple(module.weight.shape)
        elif width is not None:
            module.normalized_shape = (*module.normalized_shape[:-1], width)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = module.weight.shape[0]
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = module.weight.shape[1]


def index_dims(tensor: Tensor, keep: tuple[Tensor | None, ...]) -> Tensor:
    """Selects slots along several dimensions; a new tensor even where nothing is removed."""
    result = tensor.detach()
    for dim, indices in enumerate(keep):
        if indices is not None:
            result = result.index_select(dim, indices.to(tensor.device))
    return result.clone() if result.data_ptr() == tensor.data_ptr() else result
