"""Softmax over the channels of a volume whose channels are last in memory.

Networks for segmentation end in it, and its exponentials are as many for a slim network as for the
full one. Voxels are taken slab by slab, so that all steps of a slab happen in the cache; the last
step goes to the standard layout, which is what users of the network expect. If a 1x1x1 convolution
comes just before, its matrix product is one of the steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranp.speed.layout import is_channels_last

_SLAB = 2**16
"""Numbers in a slab: 256 KiB, so that logits, powers and result fit a core's own cache."""


class ChannelsLastSoftmax(nn.Softmax):
    """A softmax over channels-last volumes that returns the standard layout.

    PyTorch's own copies such a volume to the standard layout first, element by element. On
    anything else, and where a gradient is wanted, it is the plain softmax.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, D, H, W) to probabilities of the same shape."""
        if self.dim != 1 or not _is_fast(x):
            return super().forward(x)
        return softmax_by_slabs(x)


class PointwiseSoftmax(nn.Conv3d):
    """A 1x1x1 convolution and the softmax after it; for inference only."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, D, H, W) to probabilities (N, out_channels, D, H, W)."""
        if not _is_fast(x):
            return F.softmax(super().forward(x), dim=1)
        return softmax_by_slabs(x, self.weight.flatten(1), self.bias)


def softmax_by_slabs(x: Tensor, matrix: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """softmax(W x + b) over the channels of each voxel, in standard layout.

    Args:
        x: A volume (N, C, D, H, W) whose channels are last in memory.
        matrix: W, classes x C; none means x itself.
        bias: b; none means 0.
    """
    samples, channels, *space = x.shape
    classes = channels if matrix is None else len(matrix)
    out = x.new_empty(samples, classes, *space)
    length = max(_SLAB // classes, 1)
    for volume, probabilities in zip(x, out.flatten(2), strict=True):
        rows = volume.permute(1, 2, 3, 0).reshape(-1, channels)
        slabs = zip(rows.split(length), probabilities.split(length, dim=1), strict=True)
        for voxels, result in slabs:
            logits = voxels.t()
            if matrix is not None and bias is not None:
                logits = torch.addmm(bias[:, None], matrix, logits)
            elif matrix is not None:
                logits = matrix @ logits
            powers = torch.sub(logits, logits.amax(0), out=result.new_empty(result.shape)).exp_()
            torch.mul(powers, powers.sum(0).reciprocal_(), out=result)
    return out


def is_over_channels(module: nn.Module) -> bool:
    """Return whether a module is a plain softmax over channels."""
    return type(module) is nn.Softmax and module.dim == 1


def _is_fast(x: Tensor) -> bool:
    return is_channels_last(x) and not torch.is_grad_enabled()
