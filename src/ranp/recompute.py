"""Activation checkpointing for any model: compute again in the backward pass what was not kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules with parameters that are called as such, not mere containers.

    One that is all of the model is none: recomputing everything at once would save nothing.
    """
    result: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) or _is_row_of_blocks(child):
            result += blocks(child)
        elif next(child.parameters(), None) is not None:
            result.append(child)
    return (blocks(result[0]) or result) if len(result) == 1 else result


def _is_row_of_blocks(module: nn.Module) -> bool:
    """Return whether a module is a sequence of modules with parts, each worth recomputing."""
    sequence = isinstance(module, nn.Sequential) and len(module) > 1
    return sequence and all(next(part.children(), None) is not None for part in module.children())


@contextmanager
def checkpointed(model: nn.Module) -> Iterator[None]:
    """Let each block of the model keep its inputs only and run twice, while inside."""
    with ExitStack() as stack:
        for block in blocks(model):
            if "forward" in vars(block):
                continue  # shared, or patched already
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
            stack.callback(delattr, block, "forward")
        yield
