"""An operation of one's own, with the rule that tells how channels pass through it."""

import torch
from torch import Tensor

from ranp.graph import rule


@torch.library.custom_op("extension::swish3", mutates_args=())
def swish3(x: Tensor) -> Tensor:
    return x * torch.sigmoid(3 * x)


@swish3.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, gradient: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    s = torch.sigmoid(3 * x)
    return gradient * (s + 3 * x * s * (1 - s))


swish3.register_autograd(_backward, setup_context=_save)


@rule("extension::swish3")
def passes_through(propagator, operation):
    return propagator.dims(operation["x"])
