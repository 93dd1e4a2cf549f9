"""Look at the first batch of a loader, without opening the loader twice."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ranp.errors import UsageError
from ranp.graph import ExampleInput
from ranp.pruning.batches import Forward, make_forward, samples, split_pair, to_device
from ranp.user_code import BlamedLoader


@dataclass(frozen=True)
class Batches:
    """A loader and its first batch.

    Attributes:
        loader: Yields batches, the first one included; None if there is none.
        first: The first batch; None if there is none, or if it was not read.
    """

    loader: Iterable[Any] | None = None
    first: Any = None

    def example(self, model: nn.Module, forward: Forward | None) -> ExampleInput:
        """Return one sample of the first batch to trace a model with.

        Args:
            model: The model.
            forward: `forward(model, batch)` of the user, if any: then a batch may be anything, and
                what it calls the model with is the example.
        """
        if self.first is None and self.loader is not None:
            raise UsageError("the loader is empty: it yields no batch")
        if self.first is None:
            raise UsageError("give an example_input: there is no batch to take it from")
        if forward is not None:
            called = called_with(model, forward, samples(self.first, slice(0, 1)))
            if called is not None:
                return called
        x = input_of_pair(self.first, forward)
        if not isinstance(x, Tensor):
            raise UsageError("give an example_input: the batch's input is not a single tensor")
        # A shape stands for floating-point numbers, on the model's device.
        return (1, *x.shape[1:]) if x.is_floating_point() else x[:1]

    def input_shape(self, forward: Forward | None) -> tuple[int, ...]:
        """Return the shape of the first batch's input; () without a batch."""
        if self.first is None:
            return ()
        if forward is not None:
            return tuple(input_of(self.first).shape)
        x, _ = split_pair(self.first)
        if x is not None and not isinstance(x, Tensor):
            raise UsageError(
                "the batch's input is not a single tensor: give a forward(model, batch), and say "
                "what is trained with by batch and input"
            )
        return () if x is None else tuple(x.shape)


class _Called(BaseException):
    """Ends the user's forward where it calls the model; no `except Exception` catches it."""


def called_with(model: nn.Module, forward: Forward, batch: Any) -> ExampleInput | None:
    """Return what a `forward(model, batch)` calls the model with first; None if it does not.

    The model itself does not run.
    """
    found: list[ExampleInput] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs:
            bound = inspect.signature(module.forward).bind(*args, **kwargs)
            found.append(bound.arguments)
        else:
            alone = len(args) == 1 and isinstance(args[0], Tensor) and args[0].is_floating_point()
            found.append(tuple(args[0].shape) if alone else args)
        raise _Called

    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    hook = model.register_forward_pre_hook(note, with_kwargs=True, prepend=True)
    try:
        with torch.random.fork_rng(), torch.no_grad():
            make_forward(None, forward)(model, to_device(batch, device))
    except _Called:
        return found[0]
    finally:
        hook.remove()
    return None


def input_of_pair(batch: Any, forward: Forward | None) -> Any:
    """Return the input in a pair, of which alone a forward need not tell what the model takes."""
    try:
        x, _ = split_pair(batch)
    except UsageError as error:
        if forward is None:
            raise
        raise UsageError(
            "forward(model, batch) must call the model to tell what it takes, got a forward "
            "that does not; call the model that it is given, or give an example_input"
        ) from error
    return x


def peek(loader: Iterable[Any] | None) -> Batches:
    """Look at the first batch of a loader, which is opened once for it and for scoring."""
    if loader is None:
        return Batches()
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise UsageError(f"loader must yield batches, got {type(loader).__name__}")
    with torch.random.fork_rng():  # a shuffled loader draws its order when it is opened
        iterator = iter(loader)
        batches = list(islice(iterator, 1))
    if batches and batches[0] is None:
        raise UsageError("a batch must be data, got None; look at what the loader collates")
    first = batches[0] if batches else None
    return Batches(_Peeked(loader, chain(batches, iterator)), first)


def peek_blamed(loader: Iterable[Any]) -> Batches:
    """Look at the first batch of a loader whose errors are the user's, now and later."""
    return peek(BlamedLoader(loader))


class _Peeked:
    """A loader that was opened for its first batch: the first iteration continues from there."""

    def __init__(self, loader: Iterable[Any], opened: Iterator[Any]) -> None:
        self._loader = loader
        self._opened: Iterator[Any] | None = opened

    def __iter__(self) -> Iterator[Any]:
        opened, self._opened = self._opened, None
        return iter(self._loader) if opened is None else opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # how it is shared out among processes


def input_of(batch: Any) -> Tensor:
    """Return the input in a batch: that of a pair, or a floating point tensor.

    It is the first of those with the most dimensions: what belongs to a sample as a whole, such as
    an age, may come before its volume.
    """
    try:
        x, _ = split_pair(batch)
    except UsageError:
        x = None
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    inputs = (t for t in tensors if t.is_floating_point() and t.dim() > 1)
    x = x if isinstance(x, Tensor) else max(inputs, key=Tensor.dim, default=None)
    if x is None:
        raise UsageError(
            "a batch must hold a floating point tensor to train with, got "
            f"{type(batch).__name__} without one; give batch and input, and no loader"
        )
    return x
