"""What convolutions take besides inputs and outputs, against the allocator's records."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ranp.resources.convolution_workspace import convolution_workspace
from ranp.resources.machine import onednn_kernels
from tests.resources.allocator import peak_of

Conv, Transposed = nn.Conv3d, nn.ConvTranspose3d

CASES = {
    "thin, batch 1: unfolded": (Conv(8, 12, 3, padding=1), (1, 8, 14, 14, 14)),
    "thin, stride, batch 1": (Conv(3, 8, 3, stride=(1, 2, 2), padding=1), (1, 3, 8, 16, 16)),
    "pointwise on a single thread": (Conv(24, 10, 1), (2, 24, 12, 12, 12)),
    "dilated, batch 1": (Conv(8, 8, 3, padding=2, dilation=2), (1, 8, 12, 12, 12)),
    "oneDNN, whole blocks": (Conv(16, 32, 3, padding=1), (2, 16, 12, 12, 12)),
    "oneDNN, padded to blocks": (Conv(14, 11, 3, padding=1), (2, 14, 12, 12, 12)),
    "oneDNN, fewer inputs than a block": (Conv(5, 18, 3, padding=1), (2, 5, 12, 12, 12)),
    "oneDNN, many channels": (Conv(64, 64, 3, padding=1), (1, 64, 20, 20, 20)),
    "oneDNN, stride": (Conv(16, 32, 3, stride=2, padding=1), (2, 16, 16, 16, 16)),
    "oneDNN, no padding": (Conv(16, 16, 3), (2, 16, 12, 12, 12)),
    "oneDNN, an image": (Conv(1, 2, 3, padding=1), (2, 1, 12, 12, 12)),
    "oneDNN, one block to less": (Conv(18, 8, 3, padding=1), (2, 18, 12, 12, 12)),
    "oneDNN where it can, bfloat16": (
        *(Conv(48, 16, 3, padding=1).bfloat16(), (2, 48, 12, 12, 12)),
    ),
    "depthwise": (Conv(40, 40, 3, padding=1, groups=40), (1, 40, 8, 16, 16)),
    "depthwise, stride": (Conv(42, 42, 3, stride=2, padding=1, groups=42), (2, 42, 8, 16, 16)),
    "grouped": (Conv(16, 16, 3, padding=1, groups=2), (2, 16, 12, 12, 12)),
    "transposed, oneDNN": (Transposed(16, 8, 2, 2), (2, 16, 8, 8, 8)),
    "2D, batch 1": (nn.Conv2d(16, 16, 3, padding=1), (1, 16, 24, 24)),
    "2D, batch 2": (nn.Conv2d(16, 16, 3, padding=1), (2, 16, 48, 48)),
    "bfloat16": (Conv(8, 12, 3, padding=1).bfloat16(), (2, 8, 12, 12, 12)),
}


class Predicted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.bytes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.bytes[func] = convolution_workspace(func, args, out)
        return out


@pytest.mark.parametrize("name", CASES)
def test_workspace_is_what_the_allocator_sees(name, one_thread):
    layer, shape = CASES[name]
    x = torch.randn(shape, dtype=layer.weight.dtype, requires_grad=True)
    wanted = [x, *layer.parameters()]
    with Predicted() as predicted:
        y = layer(x)
        torch.autograd.grad(y, wanted, torch.ones_like(y))
    y, forward = peak_of(lambda: layer(x))
    grad = torch.randn_like(y)
    gradients, backward = peak_of(lambda: torch.autograd.grad(y, wanted, grad))

    scale = x.nbytes + y.nbytes
    by_forward = predicted.bytes[torch.ops.aten.convolution.default]
    by_backward = predicted.bytes[torch.ops.aten.convolution_backward.default]
    assert by_forward == pytest.approx(forward - y.nbytes, abs=0.03 * scale)
    taken = backward - sum(g.nbytes for g in gradients)
    # For the gradient of the weight oneDNN asks for up to four times its size and does not touch
    # it on a single thread: it is allocated, and takes no memory.
    unfolds = name.startswith("oneDNN") or onednn_kernels() == "SSE"
    untouched = 4 * layer.weight.nbytes if unfolds else 0
    assert taken - untouched - 0.03 * scale <= by_backward <= taken + 0.03 * scale


def test_unfolding_costs_a_column_for_every_voxel(one_thread):
    x, weight = torch.randn(1, 4, 10, 10, 10), torch.randn(6, 4, 3, 3, 3)
    options = ([1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1)
    assert torch._C._select_conv_backend(x, weight, None, *options).name == "Slow3d"
    func = torch.ops.aten.convolution.default
    taken = convolution_workspace(
        func, (x, weight, None, *options), func(x, weight, None, *options)
    )
    assert taken == 1000 * 4 * 27 * 4


def test_other_operations_take_nothing():
    x = torch.randn(4)
    assert convolution_workspace(torch.ops.aten.relu.default, (x,), x.relu()) == 0
