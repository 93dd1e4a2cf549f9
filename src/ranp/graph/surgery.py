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
from ranp.files import json_sha256


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return a model's parameters, then its buffers; shared ones once, under their first name."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def owner_of(name: str) -> str:
    """Return the module of a parameter or buffer; those of a parametrization are its module's."""
    module, parametrized, _ = name.partition(".parametrizations.")
    return module if parametrized else name.rpartition(".")[0]


def tensor_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's parameters and buffers, by name."""
    return {name: tuple(tensor.shape) for name, tensor in named_tensors(model)}


def shape_difference(
    left: Mapping[str, tuple[int, ...]], right: Mapping[str, tuple[int, ...]]
) -> tuple[str, object, object] | None:
    """Return the first name with different shapes, and both; "missing" where there is none."""
    for name in dict.fromkeys([*left, *right]):
        if left.get(name) != right.get(name):
            return name, left.get(name, "missing"), right.get(name, "missing")
    return None


def shapes_fingerprint(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return a hash of the names and shapes of a network's tensors, in their order."""
    return json_sha256([[name, list(shape)] for name, shape in shapes.items()])


@contextmanager
def training_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Set train or eval mode without running the model's own `train`, and set it back."""
    before = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in before:
            module.training = training
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Give a model back as it was, whatever happens inside.

    Set back are the tensors that parameters hold, their gradients and `requires_grad`, the values
    of buffers, modes, whatever else modules remember, and the random number generators.
    """
    parameters = [(p, p.requires_grad, p.grad, p.data) for p in model.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    # A forward may put another tensor in a buffer's place, count, or keep activations: each of
    # these dictionaries and lists gets back what it held.
    remembered: list[tuple[Any, Any]] = []
    for module in model.modules():
        own = (value for name, value in vars(module).items() if name not in _MODULE_ATTRIBUTES)
        containers = [value for value in own if isinstance(value, (dict, list))]
        held = (module._buffers, vars(module), *containers)
        remembered += [(container, container.copy()) for container in held]
    devices = {p.device for p, *_ in parameters if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(sorted(devices, key=str)):
            yield
    finally:
        with torch.no_grad():
            for parameter, wants_grad, grad, data in parameters:
                parameter.data = data
                parameter.grad = grad
                parameter.requires_grad_(wants_grad)
            for buffer, values in buffers:
                buffer.copy_(values)
        for container, before in remembered:
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(before)


_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes that every module has: parameters, buffers, hooks."""


@contextmanager
def swapped_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Put other tensors in place of parameters and buffers, and put them back."""
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
    """Return a copy of a model's structure without data, to be traced in the model's place."""
    return rebuild(model, lambda _, tensor: tensor.to("meta"), {})


def remembered_results(model: nn.Module) -> dict[int, object]:
    """Return the results that modules remember, without their autograd graph, by identity.

    A weight that a hook has computed, or the heads that MONAI's DynUNet keeps of its last forward,
    cannot be deep-copied while they belong to a graph; with this as its memo, deep copying takes
    these in their place.
    """
    found: dict[int, object] = {}
    seen: set[int] = set()
    waiting: list[object] = [vars(module) for module in model.modules()]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            if not value.is_leaf:
                found[id(value)] = value.detach()
        elif isinstance(value, (list, tuple, dict)) and id(value) not in seen:
            seen.add(id(value))  # a list may hold itself
            waiting += value.values() if isinstance(value, dict) else value
    return found


def rebuild(
    model: nn.Module, replace: Callable[[str, Tensor], Tensor], widths: Mapping[str, int]
) -> nn.Module:
    """Copy a model's structure, with other tensors in place of its parameters and buffers.

    The full-size tensors are never copied: deep copying finds their replacements already made.
    Forward and backward hooks are copied as deep copying does: functions are shared, bound
    methods of the model's own modules are bound to the copies. Modules that have no tensor to
    read their channel number from (normalization without weights) take it from `widths`.
    """
    memo: dict[int, object] = {}
    for name, tensor in named_tensors(model):
        new = replace(name, tensor)
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, requires_grad=tensor.requires_grad and new.is_floating_point())
        memo[id(tensor)] = new
    for module in model.modules():
        for value in vars(module).values():
            # A module has a dozen dictionaries of hooks, nearly all of them empty.
            if isinstance(value, dict) and not value:
                memo[id(value)] = type(value)()
    memo = {**remembered_results(model), **memo}
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


def _conv_attributes(module: nn.modules.conv._ConvNd, width: int | None) -> dict[str, Any]:
    rows, columns = module.weight.shape[:2]
    groups, is_depthwise = module.groups, module.groups == module.in_channels > 1
    if module.transposed:
        groups = rows if is_depthwise else groups
        return {"groups": groups, "in_channels": rows, "out_channels": columns * groups}
    groups = rows // (module.out_channels // module.in_channels) if is_depthwise else groups
    return {"groups": groups, "in_channels": columns * groups, "out_channels": rows}


def _channel_norm_attributes(
    module: nn.modules.batchnorm._NormBase, width: int | None
) -> dict[str, Any]:
    reference = module.weight if module.affine else module.running_mean
    return {"num_features": width if reference is None else reference.shape[0]}


def _group_norm_attributes(module: nn.GroupNorm, width: int | None) -> dict[str, Any]:
    channels = module.weight.shape[0] if module.affine else width
    per_channel = module.num_groups == module.num_channels
    return {"num_channels": channels, "num_groups": channels if per_channel else None}


def _layer_norm_attributes(module: nn.LayerNorm | nn.RMSNorm, width: int | None) -> dict[str, Any]:
    if module.elementwise_affine:
        return {"normalized_shape": tuple(module.weight.shape)}
    return {"normalized_shape": width and (*module.normalized_shape[:-1], width)}


# By kind of module, the attributes that hold channel counts, read from its tensors or from the
# width of its input; None keeps the present value.
_CHANNEL_ATTRIBUTES: dict[type[nn.Module], Callable[[Any, int | None], dict[str, Any]]] = {
    nn.modules.conv._ConvNd: _conv_attributes,
    nn.Linear: lambda m, _: dict(zip(("out_features", "in_features"), m.weight.shape, strict=True)),
    nn.modules.batchnorm._NormBase: _channel_norm_attributes,
    nn.GroupNorm: _group_norm_attributes,
    nn.LayerNorm: _layer_norm_attributes,
    nn.RMSNorm: _layer_norm_attributes,
    nn.PReLU: lambda m, _: {"num_parameters": m.weight.shape[0]},
    nn.Embedding: lambda m, _: {"embedding_dim": m.weight.shape[1]},
}


def _update_attributes(module: nn.Module, width: int | None) -> None:
    """Bring the channel counts that a module stores in line with its tensors."""
    for kind, attributes in _CHANNEL_ATTRIBUTES.items():
        if isinstance(module, kind):
            for name, value in attributes(module, width).items():
                if value is not None:
                    setattr(module, name, value)


def index_dims(tensor: Tensor, keep: tuple[Tensor | None, ...]) -> Tensor:
    """Select slots along several dimensions; a new tensor even where nothing is removed."""
    result = tensor.detach()
    for dim, indices in enumerate(keep):
        if indices is not None:
            result = result.index_select(dim, indices.to(tensor.device))
    return result.clone() if result.data_ptr() == tensor.data_ptr() else result
