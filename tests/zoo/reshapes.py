"""Slots picked, cut and moved: slices, splits, views, shuffles, indices."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.case import Net, case, conv


def _between(change: Callable[[Tensor], Tensor], width: int, stem: int = 8) -> nn.Module:
    """Something done to the channels between two layers."""

    def run(net: Net, x):
        return net.head(F.relu(net.middle(change(F.relu(net.stem(x))))))

    return Net(run, stem=conv(3, stem), middle=conv(width, 6), head=conv(6, 2))


def _halves(cut: Callable[[Tensor], tuple[Tensor, Tensor]]) -> nn.Module:
    """Each half goes into a layer of its own."""

    def run(net: Net, x):
        left, right = cut(F.relu(net.stem(x)))
        return net.left(left) + net.right(right)

    return Net(run, stem=conv(3, 8), left=conv(4, 2), right=conv(4, 2))


@case((2, 3, 6, 6), neurons=14, classes=14)
def reshaped_in_place() -> nn.Module:
    """A dimension that comes and goes in place: the tensor was of another shape before"""
    return _between(lambda y: (2 * y).unsqueeze_(1).squeeze_(1), 8)


@case((2, 3, 6, 6), neurons=8, classes=4)
def slices() -> nn.Module:
    """Halves taken by slices relative to the width: both lose the same"""
    return _halves(lambda y: (y[:, : y.shape[1] // 2], y[:, y.shape[1] // 2 :]))


@case((2, 3, 6, 6), neurons=0)
def slices_by_number() -> nn.Module:
    """Halves taken by numbers in the code"""
    return _halves(lambda y: (y[:, :4], y[:, 4:]))


@case((2, 3, 6, 6), neurons=8, classes=4)
def chunk() -> nn.Module:
    """Halves taken by chunk"""
    return _halves(lambda y: y.chunk(2, dim=1))


@case((2, 3, 6, 6), neurons=8, classes=4)
def split() -> nn.Module:
    """Halves taken by split, relative to the width"""
    return _halves(lambda y: y.split(y.shape[1] // 2, dim=1))


@case((2, 3, 6, 6), neurons=8, classes=4)
def tensor_split() -> nn.Module:
    """Halves taken by tensor_split"""
    return _halves(lambda y: torch.tensor_split(y, 2, dim=1))


@case((2, 3, 6, 6), neurons=0)
def split_by_numbers() -> nn.Module:
    """Halves taken by numbers in the code"""
    return _halves(lambda y: y.split([4, 4], dim=1))


@case((2, 3, 6, 6), neurons=8)
def split_of_concat() -> nn.Module:
    """Branches joined and taken apart again: each keeps its own channels"""

    def run(net: Net, x):
        a, b = net.a(x), net.b(x)
        a, b = F.relu(torch.cat([a, b], 1)).split([a.shape[1], b.shape[1]], dim=1)
        return net.left(a) + net.right(b)

    return Net(run, a=conv(3, 4), b=conv(3, 4), left=conv(4, 2), right=conv(4, 2))


@case((2, 3, 6, 6), neurons=10)
def slices_of_concat() -> nn.Module:
    """The same by slices"""

    def run(net: Net, x):
        a, b = net.a(x), net.b(x)
        both = F.relu(torch.cat([a, b], 1))
        return net.left(both[:, : a.shape[1]]) + net.right(both[:, a.shape[1] :])

    return Net(run, a=conv(3, 4), b=conv(3, 6), left=conv(4, 2), right=conv(6, 2))


@case((2, 3, 6, 6), neurons=6)
def every_other() -> nn.Module:
    """A slice with a step depends on the position of every channel"""
    return _between(lambda y: y[:, ::2], 4)


@case((2, 3, 6, 6), neurons=6)
def unbind() -> nn.Module:
    """Channels picked one by one"""
    return _between(lambda y: torch.stack([y.unbind(1)[0], y[:, 3], y[:, -1]], 1), 3)


@case((2, 3, 6, 6), neurons=16 + 6, classes=8 + 6)
def glu() -> nn.Module:
    """A gated linear unit: a channel goes with its gate"""
    return _between(lambda y: F.glu(y, dim=1), 8, stem=16)


@case((2, 3, 2, 6, 6), neurons=16, classes=4)
def recurrent_gates() -> nn.Module:
    """A convolutional LSTM: four gates by chunk, the state fed back"""

    def run(net: Net, frames):
        hidden = cell = None
        for x in frames.unbind(2):
            if hidden is None:
                hidden = x.new_zeros(x.shape[0], net.gates.out_channels // 4, *x.shape[2:])
                cell = hidden
            i, f, o, g = net.gates(torch.cat([x, hidden], 1)).chunk(4, dim=1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return net.head(hidden)

    return Net(run, gates=conv(7, 16), head=conv(4, 2))


@case((2, 3, 4, 4), neurons=8 + 12)
def flatten() -> nn.Module:
    """A channel becomes 16 features of a linear layer"""
    return nn.Sequential(
        conv(3, 8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 12), nn.ReLU(), nn.Linear(12, 3)
    )


@case((2, 3, 4, 4), neurons=8 + 12)
def flatten_of_sum() -> nn.Module:
    """A state of zeros is added before; its other dimensions are not channels"""

    def run(net: Net, x):
        y = net.stem(x)
        y = F.relu(y + torch.zeros(y.shape, dtype=y.dtype))
        return net.head(F.relu(net.middle(y.flatten(1))))

    return Net(run, stem=conv(3, 8), middle=nn.Linear(128, 12), head=nn.Linear(12, 3))


@case((2, 3, 4, 4), neurons=12)
def flatten_by_number() -> nn.Module:
    """The same with the number of features in the code"""

    def run(net: Net, x):
        return net.head(F.relu(net.middle(F.relu(net.stem(x)).view(-1, 128))))

    return Net(run, stem=conv(3, 8), middle=nn.Linear(128, 12), head=nn.Linear(12, 3))


@case((4, 10), neurons=32 + 6, classes=2 + 6)
def unflatten() -> nn.Module:
    """A generator: features become a small image of as many channels as there are"""

    def run(net: Net, x):
        y = F.relu(net.stem(x))
        return net.head(F.relu(net.middle(y.view(y.shape[0], -1, 4, 4))))

    return Net(run, stem=nn.Linear(10, 32), middle=conv(2, 6), head=conv(6, 2))


@case((4, 10), neurons=38, classes=10)
def unflatten_and_upsample() -> nn.Module:
    """The same by a view, and interpolated: what is interpolated are no channels"""

    def run(net: Net, x):
        y = net.features(x).view(x.shape[0], -1, 2, 4)
        return net.head(F.relu(net.middle(F.interpolate(y, scale_factor=2))))

    return Net(run, features=nn.Linear(10, 32), middle=conv(4, 6), head=conv(6, 2))


@case((2, 3, 6, 6), neurons=6)
def view_by_numbers() -> nn.Module:
    """A view with the width in the code"""
    return _between(lambda y: y.view(y.shape[0], 8, -1).view(y.shape[0], 8, *y.shape[2:]), 8)


@case((2, 3, 6, 6), neurons=14)
def time_in_batch() -> nn.Module:
    """Space folded into the batch and back"""

    def run(net: Net, x):
        y = net.stem(x)
        batch, channels, rows, columns = y.shape
        y = net.middle(y.permute(0, 2, 1, 3).reshape(batch * rows, channels, columns))
        y = y.reshape(batch, rows, -1, columns).transpose(1, 2)
        return net.head(F.relu(y))

    return Net(run, stem=conv(3, 8), middle=conv(8, 6, dims=1), head=conv(6, 2))


@case((2, 3, 6, 6), neurons=14)
def linear_on_channels_last() -> nn.Module:
    """A linear layer between permutations"""

    def run(net: Net, x):
        y = net.middle(net.stem(x).permute(0, 2, 3, 1)).movedim(-1, 1)
        return net.head(F.relu(y))

    return Net(run, stem=conv(3, 8), middle=nn.Linear(8, 6), head=conv(6, 2))


@case((2, 3, 6, 6), neurons=14, classes=4 + 6)
def channel_shuffle() -> nn.Module:
    """Channel shuffle as an operation"""
    return _between(lambda y: F.channel_shuffle(y, 2), 8)


def _shuffled(y: Tensor, groups: int, width: int) -> Tensor:
    batch, _, *space = y.shape
    y = y.view(batch, groups, width // groups, *space).transpose(1, 2)
    return y.reshape(batch, width, *space)


@case((2, 3, 6, 6), neurons=14, classes=4 + 6)
def channel_shuffle_by_view() -> nn.Module:
    """Channel shuffle by views"""
    return _between(lambda y: _shuffled(y, 2, y.shape[1]), 8)


@case((2, 3, 6, 6), neurons=14, classes=2 + 6)
def channel_shuffle_of_many_groups() -> nn.Module:
    """More groups than channels in a group: the longest axis is not the one that shrinks"""
    return _between(lambda y: _shuffled(y, 4, y.shape[1]), 8)


@case((2, 3, 6, 6), neurons=6)
def channel_shuffle_by_numbers() -> nn.Module:
    """Channel shuffle with the width in the code"""
    return _between(lambda y: _shuffled(y, 2, 8), 8)


@case((2, 3, 6, 6), neurons=16 + 8 + 8, classes=8)
def shuffle_unit() -> nn.Module:
    """A ShuffleNet unit: half passes, half is worked on, then shuffled"""

    def run(net: Net, x):
        passing, worked = net.stem(x).chunk(2, 1)
        worked = net.depthwise(F.relu(net.point(worked)))
        both = torch.cat([passing, worked], 1)
        return net.head(F.relu(_shuffled(both, 2, both.shape[1])))

    return Net(
        run,
        stem=conv(3, 16),
        point=conv(8, 8, 1),
        depthwise=conv(8, 8, groups=8),
        head=conv(16, 2),
    )


@case((2, 3, 6, 6), neurons=32 + 6, classes=8 + 6)
def pixel_shuffle() -> nn.Module:
    """Four channels become one of twice the size"""
    return _between(lambda y: F.pixel_shuffle(y, 2), 8, stem=32)


@case((2, 3, 6, 6), neurons=4 + 6)
def pixel_unshuffle() -> nn.Module:
    """A channel becomes four of half the size"""
    return _between(lambda y: F.pixel_unshuffle(y, 2), 16, stem=4)


@case((2, 3, 2, 3, 2), neurons=32 + 6, classes=4 + 6)
def pixel_shuffle_3d() -> nn.Module:
    """Pixel shuffle in three dimensions, by views"""

    def run(net: Net, x):
        y = F.relu(net.stem(x))
        batch, channels, *space = y.shape
        y = y.view(batch, channels // 8, 2, 2, 2, *space).permute(0, 1, 5, 2, 6, 3, 7, 4)
        y = y.reshape(batch, channels // 8, *(2 * size for size in space))
        return net.head(F.relu(net.middle(y)))

    return Net(run, stem=conv(3, 32, dims=3), middle=conv(4, 6, dims=3), head=conv(6, 2, dims=3))


@case((2, 3, 6, 6), neurons=14)
def flip() -> nn.Module:
    """Channels in reverse order"""
    return _between(lambda y: y.flip(1), 8)


@case((2, 3, 6, 6), neurons=6)
def roll() -> nn.Module:
    """Channels moved round"""
    return _between(lambda y: y.roll(3, 1), 8)


@case((2, 3, 6, 6), neurons=10)
def repeat() -> nn.Module:
    """Channels laid end to end twice"""
    return _between(lambda y: y.repeat(1, 2, 1, 1), 8, stem=4)


@case((2, 3, 6, 6), neurons=10)
def repeat_interleave() -> nn.Module:
    """Every channel twice in a row"""
    return _between(lambda y: y.repeat_interleave(2, dim=1), 8, stem=4)


@case((2, 3, 6, 6), neurons=6)
def index() -> nn.Module:
    """Channels picked by a list of numbers"""
    return _between(lambda y: y[:, [0, 3, 5, 1]], 4)


@case((2, 3, 6, 6), neurons=6)
def index_select() -> nn.Module:
    """Channels picked by a tensor of numbers"""
    return _between(lambda y: y.index_select(1, torch.tensor([7, 2, 2, 4])), 4)


@case((2, 3, 6, 6), neurons=6)
def top_channels() -> nn.Module:
    """The strongest channels at every place"""
    return _between(lambda y: y.topk(4, dim=1).values, 4)


@case((2, 3, 6, 6), neurons=6)
def cumulative() -> nn.Module:
    """A running sum over channels"""
    return _between(lambda y: y.cumsum(1), 8)


@case((2, 3, 6, 6), neurons=14)
def picked_in_space() -> nn.Module:
    """Space is sliced, indexed and cut; channels are not concerned"""

    def change(y: Tensor) -> Tensor:
        y = y[:, :, 1:, ::2][..., [0, 2, 1]]
        return torch.cat([y[:, :, :2], y.narrow(2, 1, 3)], 2).roll(1, 2)

    return _between(change, 8)
