"""One call of an ATen operation, its arguments by name, and the registries of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ranp.graph.labels import Dims

if TYPE_CHECKING:
    from ranp.graph.propagation import Propagator

Rule = Callable[["Propagator", "Operation"], "Dims | list[Dims]"]
Picker = Callable[[Dims, "Operation"], "Dims | list[Dims]"]

RuleT = TypeVar("RuleT", bound=Rule)
PickerT = TypeVar("PickerT", bound=Picker)

RULES: dict[str, Rule] = {}
PICKERS: dict[str, Picker] = {}
CARRIERS: set[Rule] = set()


def rule(*names: str) -> Callable[[RuleT], RuleT]:
    """Register what an operation does to labels, for all overloads of each name.

    Args:
        names: Names such as "convolution"; with their namespace if that is not ATen.
    """
    return _register(RULES, names)


def picker(*names: str) -> Callable[[PickerT], PickerT]:
    """Register which slots of its input an operation picks by their number (a slice, say).

    Such an operation can pick the wrong slots of a slim network without any error, and with the
    right shapes. So the check pass asks again which ones it picked.
    """
    return _register(PICKERS, names)


def carrier(function: RuleT) -> RuleT:
    """Mark the rule of operations that work element by element, or bring to another shape.

    A mean over channels that goes through such operations alone, until it meets these channels
    again, is the statistic of a norm (see `Propagator.statistic`).
    """
    CARRIERS.add(function)
    return function


def _register(registry: dict[str, Any], names: tuple[str, ...]) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        for name in names:
            registry[name if "::" in name else f"aten::{name}"] = function
        return function

    return register


@dataclass(frozen=True)
class Operation:
    """An ATen call: its arguments by their schema names, and its output tensors.

    Attributes:
        name: Its name with the namespace, "aten::convolution".
        arguments: All arguments, defaults included, by name.
        outputs: Output tensors.
        is_pointwise: Whether it is tagged as working element by element.
    """

    name: str
    arguments: dict[str, Any]
    outputs: tuple[Tensor, ...]
    is_pointwise: bool

    @classmethod
    def bind(
        cls, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Operation:
        """Name positional arguments and fill in defaults by the operation's schema."""
        signature = _signature(func)
        arguments = dict(signature.defaults)
        arguments.update(zip(signature.names, args, strict=False))
        arguments.update(kwargs)
        outputs = tuple(operands((out,)))
        return cls(signature.operation, arguments, outputs, signature.is_pointwise)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str) -> Any:
        """Return an argument that not every overload has."""
        return self.arguments.get(name)

    @property
    def short_name(self) -> str:
        """The name in messages: "add" for aten::add_; other namespaces keep theirs."""
        return self.name.removeprefix("aten::").strip("_")

    @property
    def output(self) -> Tensor:
        """The only, or first, output."""
        return self.outputs[0]

    @property
    def numbers(self) -> dict[str, float]:
        """The scalar arguments that its values depend on, by name: factors, fills, groups."""
        kinds = (int, float) if self.is_pointwise or self.name in _OF_WHOLE_NUMBERS else float
        values = {name: _constant(value) for name, value in self.arguments.items()}
        return {name: value for name, value in values.items() if isinstance(value, kinds)}

    @cached_property
    def inputs(self) -> list[Tensor]:
        """All tensors among the arguments."""
        return list(operands(self.arguments.values()))


@dataclass(frozen=True)
class _Signature:
    operation: str
    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    is_pointwise: bool


@cache
def _signature(func: torch._ops.OpOverload) -> _Signature:
    schema = func._schema
    return _Signature(
        schema.name,
        tuple(argument.name for argument in schema.arguments),
        {a.name: a.default_value for a in schema.arguments if a.has_default_value()},
        torch.Tag.pointwise in func.tags,
    )


# Operations that are not pointwise and whose values depend on a whole number.
_OF_WHOLE_NUMBERS = {
    f"aten::{name}"
    for name in ("full", "new_full", "full_like", "fill_", "scalar_tensor", "group_norm")
}


def _constant(value: Any) -> Any:
    """Return the value of a constant tensor, such as `torch.tensor(3.0)`."""
    if isinstance(value, FakeTensor):
        value = value.constant
    if not isinstance(value, Tensor) or value.is_meta or value.numel() != 1:
        return value
    with _disable_current_modes():
        return value.item()


def operands(values: Iterable[Any]) -> Iterator[Tensor]:
    """Return the tensors among the arguments, or the results, of an operation."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from operands(value)


def tensors_in(tree: Any) -> Iterable[Tensor]:
    """Return the tensors in nested containers."""
    if isinstance(tree, tuple) and all(isinstance(each, Tensor) for each in tree):
        return tree  # as nearly all modules are called
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))


def tensors_within(tree: Any) -> list[Tensor]:
    """Return the tensors in nested containers and in attributes of objects in them."""
    found: list[Tensor] = []
    seen: set[int] = set()

    def visit(tree: Any) -> None:
        for leaf in pytree.tree_leaves(tree):
            if isinstance(leaf, Tensor):
                found.append(leaf)
            elif id(leaf) not in seen and not isinstance(leaf, (type, nn.Module)):
                seen.add(id(leaf))
                if is_dataclass(leaf):  # one with slots has no dictionary
                    visit([getattr(leaf, field.name, None) for field in fields(leaf)])
                else:
                    visit(dict(getattr(leaf, "__dict__", {})))

    visit(tree)
    return found
