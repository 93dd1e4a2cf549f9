"""One call of an ATen operation, its arguments by name, and the registry of label rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ranp.graph.labels import Dims

if TYPE_CHECKING:
    from ranp.graph.propagation import Propagator

Rule = Callable[["Propagator", "Operation"], "Dims | list[Dims]"]

RULES: dict[str, Rule] = {}
POSITIONAL: set[str] = set()


def rule(*names: str, positional: bool = False) -> Callable[[Rule], Rule]:
    """Registers a label rule for ATen operations, for all overloads of each name.

    Args:
        names: Names without the namespace, such as "convolution".
        positional: Whether the operation picks slots by number (a slice, say). Such an operation
            can pick the wrong slots of a slim network without any error, so the check pass
            computes its labels anew instead of trusting shapes.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[f"aten::{name}"] = function
            if positional:
                POSITIONAL.add(f"aten::{name}")
        return function

    return register


@dataclass(frozen=True)
class Operation:
    """An ATen call: its arguments by their schema names, and its output tensors."""

    name: str
    arguments: dict[str, Any]
    outputs: tuple[Tensor, ...]

    @classmethod
    def bind(
        cls, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Operation:
        """Names positional arguments and fills in defaults by the operation's schema."""
        schema = func._schema
        arguments = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        arguments.update(zip((a.name for a in schema.arguments), args, strict=False))
        arguments.update(kwargs)
        return cls(schema.name, arguments, tuple(tensors_in(out)))

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str) -> Any:
        """An argument that not every overload has."""
        return self.arguments.get(name)

    @property
    def output(self) -> Tensor:
        """The only, or first, output."""
        return self.outputs[0]

    @property
    def inputs(self) -> list[Tensor]:
        """All tensors among the arguments."""
        return list(tensors_in(self.arguments))


def tensors_in(tree: Any) -> Iterable[Tensor]:
    """The tensors in nested containers."""
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))
