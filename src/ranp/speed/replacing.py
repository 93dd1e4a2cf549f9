"""Put another module in place of one, with the same parameters under the same names."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def rebuilt_as(kind: type[ModuleT], module: nn.Module, **attributes: Any) -> ModuleT:
    """Return a module of a subclass that shares parameters, buffers and hooks of the given one."""
    new = kind.__new__(kind)
    nn.Module.__init__(new)
    vars(new).update(vars(module) | attributes)
    return new


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Put a module in place of another, under every name that it has; return the model.

    That is the new module where it was the old one.
    """
    if model is old:
        return new
    names = [n for n, m in model.named_modules(remove_duplicate=False) if m is old]
    for name in names:
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, new)
    return model
