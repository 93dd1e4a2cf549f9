"""Branches that meet: concatenation, addition, multiplication, sharing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.zoo.case import Net, case, conv, up


@case((2, 3, 6, 6), neurons=10)
def concat() -> nn.Module:
    """Two branches end to end"""

    def run(net: Net, x):
        return net.head(F.relu(torch.cat([net.a(x), net.b(x)], dim=1)))

    return Net(run, a=conv(3, 4), b=conv(3, 6), head=conv(10, 2))


@case((2, 3, 6, 6), neurons=12)
def concat_cascade() -> nn.Module:
    """A dense block: everything before, the network's input too"""

    def run(net: Net, x):
        for layer in (net.a, net.b, net.c):
            x = torch.cat([x, F.relu(layer(x))], dim=1)
        return net.head(x)

    return Net(run, a=conv(3, 4), b=conv(7, 4), c=conv(11, 4), head=conv(15, 2))


@case((2, 3, 6, 6), neurons=8)
def concat_with_input() -> nn.Module:
    """The network's input in the middle"""

    def run(net: Net, x):
        y = net.a(x)
        return net.head(torch.cat([y[:, :0], F.relu(y), x], dim=1))

    return Net(run, a=conv(3, 8), head=conv(11, 2))


@case((2, 3, 6, 6), neurons=8)
def concat_with_constants() -> nn.Module:
    """Coordinates and zeros made in the forward"""

    def run(net: Net, x):
        y = net.a(x)
        rows = torch.linspace(-1, 1, x.shape[2], dtype=x.dtype, device=x.device)
        grid = rows.view(1, 1, -1, 1).expand(x.shape[0], 1, -1, x.shape[3])
        zeros = torch.zeros(x.shape[0], 2, *x.shape[2:], dtype=x.dtype, device=x.device)
        return net.head(torch.cat([grid, F.relu(y), zeros], dim=1))

    return Net(run, a=conv(3, 8), head=conv(11, 2))


@case((2, 1, 4, 8, 4), neurons=4 + 6 + 4 + 4)
def unet() -> nn.Module:
    """A 3D U-Net of two levels"""

    def run(net: Net, x):
        skip = F.relu(net.enter(x))
        deep = F.relu(net.deep(F.max_pool3d(skip, 2)))
        return net.head(F.relu(net.leave(torch.cat([skip, net.up(deep)], 1))))

    return Net(
        run,
        enter=conv(1, 4, dims=3),
        deep=conv(4, 6, dims=3),
        up=up(6, 4, dims=3),
        leave=conv(8, 4, dims=3),
        head=conv(4, 2, 1, dims=3),
    )


@case((2, 3, 6, 6), neurons=16, classes=8)
def residual() -> nn.Module:
    """A residual block: stem and block go together"""

    def run(net: Net, x):
        x = net.stem(x)
        return net.head(F.relu(x + net.block(F.relu(x))))

    return Net(run, stem=conv(3, 8), block=conv(8, 8), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=8 + 4 + 16 + 16, classes=8 + 4 + 16)
def residual_bottleneck() -> nn.Module:
    """A bottleneck with a projection on the shortcut"""

    def run(net: Net, x):
        x = F.relu(net.stem(x))
        y = net.expand(F.relu(net.norm(net.reduce(x))))
        return net.head(F.relu(y + net.project(x)))

    return Net(
        run,
        stem=conv(3, 8),
        reduce=conv(8, 4, 1),
        norm=nn.BatchNorm2d(4),
        expand=conv(4, 16, 1),
        project=conv(8, 16, 1),
        head=conv(16, 2),
    )


@case((2, 3, 6, 6), neurons=8)
def residual_to_input() -> nn.Module:
    """A block added to the network's input must keep all it puts out"""

    def run(net: Net, x):
        return net.head(x + net.b(F.relu(net.a(x))))

    return Net(run, a=conv(3, 8), b=conv(8, 3), head=conv(3, 2))


@case((2, 3, 6, 6), neurons=16, classes=8)
def gate() -> nn.Module:
    """A branch gates another"""

    def run(net: Net, x):
        return net.head(net.a(x) * torch.sigmoid(net.b(x)))

    return Net(run, a=conv(3, 8), b=conv(3, 8), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=8)
def gate_of_one_channel() -> nn.Module:
    """Spatial attention: a single channel is stretched over all"""

    def run(net: Net, x):
        y = net.a(x)
        return net.head(y * torch.sigmoid(net.b(y)) + net.c(y))

    return Net(run, a=conv(3, 8), b=conv(8, 1), c=conv(8, 1), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=16, classes=8)
def in_place() -> nn.Module:
    """Everything in place"""

    def run(net: Net, x):
        y = net.a(x)
        y += net.b(x)
        y.mul_(0.5).add_(1)
        return net.head(F.leaky_relu_(y, 0.1))

    return Net(run, a=conv(3, 8), b=conv(3, 8), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=24, classes=8)
def stack() -> nn.Module:
    """Branches stacked, the best taken"""

    def run(net: Net, x):
        branches = torch.stack([net.a(x), net.b(x), net.c(x)])
        return net.head(branches.amax(0) + branches.mean(dim=0))

    return Net(run, a=conv(3, 8), b=conv(3, 8), c=conv(3, 8), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=16, classes=8)
def where() -> nn.Module:
    """Comparison and choice, element by element"""

    def run(net: Net, x):
        a, b = net.a(x), net.b(x)
        return net.head(torch.where(a > b, a, -b) * torch.maximum(a, b))

    return Net(run, a=conv(3, 8), b=conv(3, 8), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=20, classes=12)
def squeeze_and_excite() -> nn.Module:
    """Squeeze and excite by linear layers"""

    def run(net: Net, x):
        y = net.stem(x)
        batch, channels = y.shape[:2]
        s = F.gelu(net.squeeze(F.adaptive_avg_pool2d(y, 1).view(batch, channels)))
        return net.head(y * torch.sigmoid(net.excite(s)).view(batch, channels, 1, 1))

    return Net(
        run, stem=conv(3, 8), squeeze=nn.Linear(8, 4), excite=nn.Linear(4, 8), head=conv(8, 2)
    )


@case((2, 3, 6, 6), neurons=20, classes=12)
def squeeze_and_excite_by_convolution() -> nn.Module:
    """The same by 1 x 1 convolutions and expand"""

    def run(net: Net, x):
        y = net.stem(x)
        s = net.excite(F.gelu(net.squeeze(y.mean((2, 3), keepdim=True))))
        return net.head(y * torch.sigmoid(s).expand_as(y))

    return Net(run, stem=conv(3, 8), squeeze=conv(8, 4, 1), excite=conv(4, 8, 1), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=6)
def channel_mean_and_max() -> nn.Module:
    """CBAM: mean and maximum over channels keep all of them"""

    def run(net: Net, x):
        y = net.stem(x)
        both = torch.cat([y.mean(1, keepdim=True), y.max(1, keepdim=True).values], 1)
        return net.head(F.relu(net.middle(y * torch.sigmoid(net.gate(both)))))

    return Net(run, stem=conv(3, 8), gate=conv(2, 1), middle=conv(8, 6), head=conv(6, 2))


@case((2, 3, 6, 6), neurons=16, classes=8, both_ends=True)
def channel_sum_and_norm() -> nn.Module:
    """A sum over channels, and their length, only lose terms"""

    def run(net: Net, x):
        a, b = F.normalize(F.relu(net.a(x)), dim=1), F.relu(net.b(x))
        return net.head(b * (a * b).sum(1, keepdim=True))

    return Net(run, a=conv(3, 8), b=conv(3, 8), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=6)
def softmax_over_channels() -> nn.Module:
    """Softmax over channels keeps all of them"""
    return nn.Sequential(conv(3, 8), nn.Softmax(dim=1), conv(8, 6), nn.ReLU(), conv(6, 2))


@case((2, 3, 6, 6), neurons=14)
def softmax_over_space() -> nn.Module:
    """Softmax over space does not touch channels"""

    def run(net: Net, x):
        y = net.stem(x)
        y = y * y.flatten(2).softmax(-1).view_as(y)
        return net.head(F.relu(net.middle(y)))

    return Net(run, stem=conv(3, 8), middle=conv(8, 6), head=conv(6, 2))


@case((2, 3, 6, 6), neurons=16, classes=8)
def called_twice() -> nn.Module:
    """A layer after itself: inputs and outputs are one"""

    def run(net: Net, x):
        y = F.relu(net.stem(x))
        return net.head(net.shared(F.relu(net.shared(y))))

    return Net(run, stem=conv(3, 8), shared=conv(8, 8), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=16, classes=8)
def two_names() -> nn.Module:
    """The same, the layer known under two names"""

    def run(net: Net, x):
        y = F.relu(net.stem(x))
        return net.head(net.alias(F.relu(net.shared(y))))

    shared = conv(8, 8)
    return Net(run, stem=conv(3, 8), shared=shared, alias=shared, head=conv(8, 2))


@case((2, 3, 6, 6), (2, 3, 6, 6), neurons=14)
def siamese() -> nn.Module:
    """One encoder for two inputs"""

    def run(net: Net, left, right):
        return net.head((net.encoder(left) - net.encoder(right)).abs())

    encoder = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 6))
    return Net(run, encoder=encoder, head=conv(6, 2))


@case((2, 3, 6, 6), neurons=16, classes=8)
def shared_norm() -> nn.Module:
    """One norm for two branches ties them"""

    def run(net: Net, x):
        return net.head(torch.cat([net.norm(net.a(x)), net.norm(net.b(x))], 1))

    return Net(run, a=conv(3, 8), b=conv(3, 8), norm=nn.BatchNorm2d(8), head=conv(16, 2))


@case((2, 3, 6, 6), neurons=24, classes=8)
def tied_weights() -> nn.Module:
    """Two layers hold one weight: its inputs and outputs are theirs"""
    layers = [conv(8, 8), conv(8, 8)]
    layers[1].weight = layers[0].weight
    return nn.Sequential(conv(3, 8), nn.ReLU(), layers[0], nn.ReLU(), layers[1], conv(8, 2))


@case((4, 10), neurons=6, both_ends=True)
def tied_transposed() -> nn.Module:
    """An autoencoder that decodes by the transposed weight"""

    def run(net: Net, x):
        return F.linear(F.relu(net.encode(x)), net.encode.weight.t())

    return Net(run, encode=nn.Linear(10, 6))


@case((2, 3, 6, 6), neurons=4)
def cost_volume() -> nn.Module:
    """Two views written slice by slice into a volume of zeros (stereo)"""

    def run(net: Net, x):
        left, right = F.relu(net.encoder(x)), F.relu(net.encoder(x.flip(3)))
        batch, width, *space = left.shape
        cost = left.new_zeros(batch, 2 * width, 3, *space)
        for shift in range(3):
            cost[:, :width, shift, :, shift:] = left[..., shift:]
            cost[:, width:, shift, :, shift:] = right[..., : space[1] - shift]
        return net.head(cost)

    return Net(run, encoder=conv(3, 4), head=conv(8, 2, dims=3))
