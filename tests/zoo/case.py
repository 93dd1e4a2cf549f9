"""What a network of the zoo is: how to build it, what to feed it, what must come out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ranp.graph import ChannelGraph, build_graph
from tests.oracle import unchanged


@dataclass(frozen=True)
class Case:
    """One network.

    Attributes:
        name: Its name in tests and tables.
        about: What is special about it.
        build: Makes it.
        inputs: Makes the arguments of its forward.
        neurons: How many neurons can be removed, found by reasoning; None where only `share` is
            promised.
        classes: Into how many channel classes these fall.
        share: The least share of its neurons that can be removed.
        both_ends: Channels meet without a weight in between: mask what they come out of, too.
        slow: Too slow for the default tests.
    """

    name: str
    about: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    neurons: int | None = None
    classes: int | None = None
    share: float = 0.0
    both_ends: bool = False
    slow: bool = False

    def make(self) -> nn.Module:
        """The network in float64 with reproducible weights."""
        torch.manual_seed(0)
        return self.build().double()


@functools.cache
def graph_of(case: Case) -> ChannelGraph:
    """The channel graph of what `case.make` makes and tracing leaves alone; one for all tests."""
    model = case.make()
    with unchanged(model):
        return build_graph(model, case.inputs())


CASES: dict[str, Case] = {}


def case(
    *shapes: tuple[int, ...],
    neurons: int,
    classes: int | None = None,
    inputs: Callable[[], tuple[Any, ...]] | None = None,
    both_ends: bool = False,
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Adds a network to the zoo, under the function's name and docstring."""

    def register(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        CASES[build.__name__] = Case(
            build.__name__,
            (build.__doc__ or "").strip(),
            build,
            inputs or floats(*shapes),
            neurons,
            neurons if classes is None else classes,
            both_ends=both_ends,
        )
        return build

    return register


def floats(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensor, ...]]:
    """Random inputs of given shapes."""

    def make() -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(1)
        return tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)

    return make


def values(*shape: int) -> nn.Parameter:
    """A parameter with values that matter."""
    return nn.Parameter(torch.rand(shape) + 0.5)


class Net(nn.Module):
    """A forward function over named parts."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


_CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def conv(inputs: int, outputs: int, kernel: int = 3, *, dims: int = 2, **kwargs: Any) -> nn.Module:
    """A convolution that keeps the size."""
    return _CONV[dims](inputs, outputs, kernel, padding=kernel // 2, **kwargs)


def up(inputs: int, outputs: int, *, dims: int = 2, **kwargs: Any) -> nn.Module:
    """A transposed convolution that doubles the size."""
    return _TRANSPOSED[dims](inputs, outputs, 2, stride=2, **kwargs)
