"""What an exported network is called with while it is captured, and while it is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ranp.errors import UsageError
from ranp.graph import ExampleInput, describe_batch
from ranp.graph.known_values import Tiled
from ranp.graph.operation import tensors_in

Sizes = tuple[int, ...]
Resize = Callable[[Sizes], Sizes]


@dataclass(frozen=True)
class Arguments:
    """The arguments of a network's forward; tensors may be anywhere in them.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, model: nn.Module, example: ExampleInput) -> Arguments:
        """Return the arguments that a tensor, a shape, a sequence or a mapping stands for."""
        described = describe_batch(model, example)
        if isinstance(example, Mapping):
            return cls((), dict(example))
        if isinstance(example, Tensor):
            return cls((example,), {})
        if isinstance(example[0], int):
            return cls(*described.materialize())
        return cls(tuple(example), {})

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in order."""
        return list(tensors_in((self.args, self.kwargs)))

    def call(self, model: Callable[..., Any]) -> Any:
        """Call a model with them."""
        return model(*self.args, **self.kwargs)

    def copy(self) -> Arguments:
        """Return the same, for a model that may work in place on what it is given."""
        tree = (self.args, self.kwargs)
        return Arguments(*pytree.tree_map_only(Tensor, Tensor.clone, tree))

    def with_random_values(self, seed: int, resize: Resize = tuple) -> Arguments:
        """Return the same with random numbers; integers, which may be indices, stay.

        Args:
            seed: Seed of the numbers; torch's global generator is not touched.
            resize: `resize(sizes)` -> the sizes that a tensor gets.
        """
        generator = torch.Generator().manual_seed(seed)

        def draw(tensor: Tensor) -> Tensor:
            sizes = resize(tuple(tensor.shape))
            if tensor.is_floating_point():
                return torch.randn(sizes, dtype=tensor.dtype, generator=generator)
            return Tiled(tensor, sizes)()

        return Arguments(*pytree.tree_map_only(Tensor, draw, (self.args, self.kwargs)))


def is_dynamic(dim: int) -> bool:
    """Return whether a dimension of an input may be dynamic: all but channels may."""
    return dim != 1


def scaled(samples: int, factor: float = 1.0) -> Resize:
    """Return a function that changes the batch size, and scales space by a factor."""

    def resize(sizes: Sizes) -> Sizes:
        if not sizes:  # a single number, the same for all samples
            return sizes
        return (samples, *sizes[1:2], *(max(1, int(size * factor)) for size in sizes[2:]))

    return resize


def dim_names(sizes: int) -> tuple[str, ...]:
    """Return what the dimensions of an input are called in a file."""
    space = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
    default = tuple(f"size{n}" for n in range(2, sizes))
    return ("batch", "channels", *space.get(sizes - 2, default))[:sizes]


def check_sizes(arguments: Arguments) -> None:
    """Refuse inputs that do not show whether a size may vary."""
    for tensor in arguments.tensors:
        if any(size < 2 for size in tensor.shape[2:]):
            raise UsageError(
                f"input {tuple(tensor.shape)} has a size of 1, which tells too little about other "
                "sizes; give a larger example input, or leave out dynamic"
            )
