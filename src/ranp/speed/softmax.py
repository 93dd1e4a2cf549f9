"""Softmax over the channels of a volume whose channels are last in memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ranp.speed.convolution import as_layout, is_plain, layout_of


class ChannelsLastSoftmax(nn.Softmax):
    """A softmax over channels that takes them as they lie, and gives out the standard layout.

    PyTorch's own copies such a volume to the standard layout first, element by element, and is
    slower there than on channels that lie side by side. On anything else it is the plain softmax.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, C, D, H, W) to probabilities of the same shape."""
        if self.dim != 1 or not is_plain(x) or layout_of(x) != "channels-last":
            return super().forward(x)
        y = torch.softmax(x.permute(0, 2, 3, 4, 1), dim=-1)
        return as_layout(y.permute(0, 4, 1, 2, 3), "standard")


def is_over_channels(module: nn.Module) -> bool:
    """Whether a module is a plain softmax over channels."""
    return type(module) is nn.Softmax and module.dim == 1


def set_channels_last(module: nn.Module) -> None:
    """Makes a softmax fast in channels-last layout."""
    module.__class__ = ChannelsLastSoftmax
