"""Several ways to compute one 3D convolution and its gradients, all with the same result.

PyTorch decides by the shape of the input which library computes a convolution on a CPU, and
sends thin volumes at batch 1 to a slow one. And no library is good at all shapes: oneDNN's
weight gradient takes three times as long for 38 -> 8 channels as for 8 -> 38. A route names, for
the forward pass and each gradient, the way that was measured to be the fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranp.speed.filling import FILLING, available_fillings
from ranp.speed.geometry import Geometry, forward_onednn, mirrored
from ranp.speed.layout import Layout, as_layout, is_plain, layout_of, owned

Forward = Callable[[Tensor, Tensor, "Tensor | None", Geometry], Tensor]
Gradient = Callable[[Tensor, Tensor, Tensor, Geometry], Tensor]


@dataclass(frozen=True)
class Route:
    """The ways that a convolution takes: names out of `FORWARD`, `DATA` and `WEIGHT`."""

    forward: str = "library"
    data: str = "library"
    weight: str = "library"


def _forward_library(x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
    return F.conv3d(x, weight, bias, g.stride, g.padding, g.dilation, g.groups)


def _forward_matmul(x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
    """W x + b at every voxel, in the layout of the input."""
    matrix = weight.flatten(1)
    if layout_of(x) == "standard":
        return _pointwise_standard(x, matrix, bias)
    y = F.linear(_rows(x), matrix, bias)
    return y.reshape(x.shape[0], *x.shape[2:], len(matrix)).permute(0, 4, 1, 2, 3)


def _pointwise_standard(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """W x + b in standard layout, whatever that of the input is."""
    matrices = matrix.expand(x.shape[0], *matrix.shape)
    columns = x.flatten(2)
    if bias is None:
        y = torch.bmm(matrices, columns)
    else:
        y = torch.baddbmm(bias[:, None], matrices, columns)
    return y.reshape(x.shape[0], len(matrix), *x.shape[2:])


def _rows(x: Tensor) -> Tensor:
    """Voxels x channels; of a volume whose channels are last in memory a view."""
    return x.permute(0, 2, 3, 4, 1).reshape(-1, x.shape[1])


def _data_by(forward: Forward) -> Gradient:
    """Return a way that convolves the output's gradient with the mirrored weight."""

    def data(grad: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
        return forward(grad, mirrored(weight), None, g.mirrored)

    return data


def _data_matmul(grad: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
    """W^T times the gradient at every voxel."""
    return _forward_matmul(grad, weight.transpose(0, 1), None, g)


def _library_gradient(of: int, grad: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
    """Return the library's gradient of the input (0) or of the weight (1)."""
    settings = (None, g.stride, g.padding, g.dilation, False, (0, 0, 0), g.groups)
    mask = [of == 0, of == 1, False]
    gradients = torch.ops.aten.convolution_backward(grad, x, weight, *settings, mask)
    gradient: Tensor = gradients[of]
    return gradient


_weight_library = partial(_library_gradient, 1)


def _weight_onednn(grad: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
    """As several samples of less depth: ATen sends those to oneDNN."""
    grad, x, g = _in_slabs(grad, x, g, _slabs(grad, x.shape[1], g))
    return _weight_library(grad, x, weight, g)


def _weight_swapped(grad: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
    """Input and gradient in each other's place.

    sum_p grad[o, p] x[i, p + k] = sum_q x[i, q] grad[o, q - k]: the weight gradient, mirrored, of
    a convolution from the output's channels to the input's.
    """
    grad, x, g = _in_slabs(grad, x, g, _slabs(grad, grad.shape[1], g))
    swapped = _weight_library(x, grad, weight.transpose(0, 1), g.mirrored)
    return mirrored(swapped)


def _weight_matmul(grad: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
    """Return the products of gradient and input, summed over all voxels."""
    if layout_of(grad) == "standard":
        matrix = torch.bmm(grad.flatten(2), x.flatten(2).transpose(1, 2)).sum(0)
    else:
        matrix = _rows(grad).t() @ _rows(x)
    return matrix.reshape(weight.shape)


def _slabs(grad: Tensor, channels: int, g: Geometry) -> int:
    """Return the fewest slabs of equal depth that ATen sends to oneDNN; 1 if there are none."""
    samples, _, depth, height, _ = grad.shape
    for parts in range(1, depth + 1):
        size = (samples * parts, channels, depth // parts, height)
        if depth % parts == 0 and g.reaches_onednn(*size):
            return parts
    return 1


def _in_slabs(grad: Tensor, x: Tensor, g: Geometry, parts: int) -> tuple[Tensor, Tensor, Geometry]:
    """Cut volumes along their depth into samples, each with all that its outputs look at."""
    if parts == 1:
        return grad, x, g
    depth = grad.shape[2] // parts
    step = depth * g.stride[0]
    reach = (depth - 1) * g.stride[0] + g.dilation[0] * (g.kernel[0] - 1) + 1
    padded = F.pad(x, (0, 0, 0, 0, g.padding[0], g.padding[0]))
    pieces = [padded[:, :, i * step : i * step + reach] for i in range(parts)]
    unpadded = replace(g, padding=(0, *g.padding[1:]))
    return torch.cat(grad.chunk(parts, dim=2)), torch.cat(pieces), unpadded


FORWARD: dict[str, Forward] = {
    "library": _forward_library,
    "onednn": forward_onednn,
    **FILLING,
    "matmul": _forward_matmul,
}
DATA: dict[str, Gradient] = {
    "library": partial(_library_gradient, 0),
    "onednn": _data_by(forward_onednn),
    **{name: _data_by(way) for name, way in FILLING.items()},
    "matmul": _data_matmul,
}
WEIGHT: dict[str, Gradient] = {
    "library": _weight_library,
    "onednn": _weight_onednn,
    "swapped": _weight_swapped,
    "matmul": _weight_matmul,
}


def available_routes(g: Geometry, x: Tensor, grad: Tensor) -> dict[str, list[str]]:
    """Return the ways open to a convolution of this shape, by part; the library's first."""
    pointwise = ["matmul"] if g.is_pointwise else []
    has_onednn = torch.backends.mkldnn.is_available() and x.dtype == torch.float32
    onednn = ["onednn"] if has_onednn and not g.reaches_onednn(*x.shape[:4]) else []
    cut = ["onednn"] if onednn and _slabs(grad, x.shape[1], g) > 1 else []
    swapped = ["swapped"] if g.is_swappable and not g.is_pointwise else []
    can_fill = has_onednn and layout_of(x) == "channels-last"
    filling = available_fillings(g, tuple(grad.shape)) if can_fill else []
    by_mirroring = []
    if g.is_swappable:
        by_mirroring = [
            *onednn,
            *(available_fillings(g.mirrored, tuple(x.shape)) if can_fill else []),
        ]
    return {
        "forward": ["library", *onednn, *filling, *pointwise],
        "data": ["library", *by_mirroring, *pointwise],
        "weight": ["library", *cut, *swapped, *pointwise],
    }


class _Convolution(torch.autograd.Function):
    """A convolution that takes its route forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, conv: RoutedConv3d
    ) -> Tensor:
        x = as_layout(x, conv.layout)
        ctx.save_for_backward(x, weight)
        ctx.conv = conv
        if conv.is_last and conv.route.forward == "matmul":
            return owned(_pointwise_standard(x, weight.flatten(1), bias))
        y = FORWARD[conv.route.forward](x, weight, bias, Geometry.of(conv))
        return owned(as_layout(y, "standard" if conv.is_last else conv.layout))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        g, route, layout = Geometry.of(ctx.conv), ctx.conv.route, ctx.conv.layout
        wants_data, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        by_bias = grad.sum((0, 2, 3, 4)) if wants_bias else None
        is_product = route.data == route.weight == "matmul"  # of either layout, at no cost
        grad = (
            grad.contiguous()
            if is_product and layout_of(grad) == "standard"
            else as_layout(grad, layout)
        )
        by_data = by_weight = None
        if wants_data:
            by_data = as_layout(DATA[route.data](grad, x, weight, g), layout)
        if wants_weight:
            by_weight = WEIGHT[route.weight](grad, x, weight, g)
        return by_data, by_weight, by_bias, None


class RoutedConv3d(nn.Conv3d):
    """A Conv3d that takes the route it was given; parameters and names are those of a Conv3d.

    On anything but plain float32 tensors on a CPU (another device, autocast, a trace, a
    transform) it is the plain convolution.
    """

    route: Route
    layout: Layout
    is_last: bool

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, D, H, W) to (N, out_channels, ...)."""
        if not is_plain(x) or self.weight.dtype != torch.float32:
            return super().forward(x)
        out: Tensor = _Convolution.apply(  # type: ignore[no-untyped-call]
            x, self.weight, self.bias, self
        )
        return out


def can_route(module: nn.Module) -> bool:
    """Return whether a module is a plain 3D convolution, with zeros around its input."""
    return (
        type(module) is nn.Conv3d
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )
