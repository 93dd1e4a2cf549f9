"""Means and variances over channels: norms written by hand, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.case import Net, case, conv, values

VOLUME = (2, 3, 4, 4, 4)


class ChannelsFirstNorm(nn.Module):
    """The layer norm of ConvNeXt: over the channels of a volume, or over those moved last."""

    def __init__(self, width: int, *, last: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = values(width), values(width)
        self.normalized_shape = (width,)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        if self.last:
            return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, 1e-6)
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None, None] * x + self.bias[:, None, None, None]


class GlobalResponseNorm(nn.Module):
    """The norm of ConvNeXt V2 and MedNeXt: a channel's length over the mean of all lengths."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = values(1, 1, 1, 1, width), values(1, 1, 1, 1, width)

    def forward(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=(1, 2, 3), keepdim=True)
        share = length / (length.mean(dim=-1, keepdim=True) + 1e-6)
        return self.gamma * (x * share) + self.beta + x


class NextBlock(nn.Module):
    """A residual block of ConvNeXt V2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = conv(width, width, dims=3, groups=width)
        self.norm = ChannelsFirstNorm(width, last=True)
        self.expand = nn.Linear(width, 2 * width)
        self.response = GlobalResponseNorm(2 * width)
        self.project = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 4, 1))
        y = self.project(self.response(F.gelu(self.expand(y))))
        return x + y.permute(0, 4, 1, 2, 3)


class StandardizedConv(nn.Conv3d):
    """A convolution whose weights have mean 0 and variance 1 over the inputs."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean(dim=(1, 2, 3, 4), keepdim=True)
        weight = weight / (weight.std(dim=(1, 2, 3, 4), keepdim=True) + 1e-5)
        return self._conv_forward(x, weight, self.bias)


class StandardizedConvInSteps(nn.Conv3d):
    """The same as it was first published: one mean after the other, and by views."""

    def forward(self, x: Tensor) -> Tensor:
        mean = self.weight
        for dim in (1, 2, 3, 4):
            mean = mean.mean(dim=dim, keepdim=True)
        weight = self.weight - mean
        deviation = weight.view(weight.size(0), -1).std(dim=1).view(-1, 1, 1, 1, 1) + 1e-5
        return self._conv_forward(x, weight / deviation.expand_as(weight), self.bias)


class StandardizedConvByVariance(nn.Conv3d):
    """The same by `var_mean`, as Big Transfer has it."""

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(self.weight, dim=[1, 2, 3, 4], keepdim=True, correction=0)
        return self._conv_forward(x, (self.weight - mean) / torch.sqrt(var + 1e-10), self.bias)


class StandardizedConvByBatchNorm(nn.Conv3d):
    """The same by a batch norm of the weight, as timm has it."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(rows, None, None, training=True, momentum=0.0)
        return self._conv_forward(x, weight.reshape_as(self.weight), self.bias)


@case(VOLUME, neurons=8 + 8 + 16 + 8, classes=8 + 16)
def convnext() -> nn.Module:
    """ConvNeXt V2: layer norm by hand on channels first, functional on last, response norm"""
    return nn.Sequential(
        conv(3, 8, dims=3), ChannelsFirstNorm(8), NextBlock(8), nn.Conv3d(8, 2, 2, stride=2)
    )


def _standardized(kind: type[nn.Conv3d]) -> nn.Module:
    return nn.Sequential(
        kind(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        kind(8, 6, 3, padding=1, bias=False),
        nn.BatchNorm3d(6),
        nn.ReLU(),
        nn.Conv3d(6, 2, 1),
    )


@case(VOLUME, neurons=14, classes=4 + 6, both_ends=True)
def weight_standardization() -> nn.Module:
    """Weight standardization"""
    return _standardized(StandardizedConv)


@case(VOLUME, neurons=14, classes=4 + 6, both_ends=True)
def weight_standardization_in_steps() -> nn.Module:
    """Weight standardization by one mean after the other and views"""
    return _standardized(StandardizedConvInSteps)


@case(VOLUME, neurons=14, classes=4 + 6, both_ends=True)
def weight_standardization_by_variance() -> nn.Module:
    """Weight standardization by var_mean"""
    return _standardized(StandardizedConvByVariance)


def _normed(norm: Callable[[Net, Tensor], Tensor]) -> nn.Module:
    def run(net: Net, x):
        return net.head(F.relu(net.middle(norm(net, net.stem(x)))))

    return Net(
        run,
        stem=conv(3, 8),
        weight=values(8, 1, 1),
        bias=values(8, 1, 1),
        middle=conv(8, 6),
        head=conv(6, 2),
    )


@case((2, 3, 6, 6), neurons=14)
def rms_norm_by_hand() -> nn.Module:
    """RMS norm over channels, partly in place"""

    def norm(net: Net, x):
        return net.weight * x.mul_(x.detach().square().mean(1, keepdim=True).add_(1e-6).rsqrt_())

    return _normed(norm)


@case((2, 3, 6, 6), neurons=14, classes=4 + 6)
def group_norm_by_hand() -> nn.Module:
    """Group norm by a view: both groups lose the same"""

    def norm(net: Net, x):
        y = x.reshape(x.shape[0], 2, -1)
        var, mean = torch.var_mean(y, dim=-1, keepdim=True)
        y = ((y - mean) * (var + 1e-5).rsqrt()).view(x.shape)
        return net.weight * y + net.bias

    return _normed(norm)


@case((2, 3, 6, 6), neurons=14, classes=4 + 6)
def evolving_norm() -> nn.Module:
    """EvoNorm: a group's deviation is stretched over the group before it divides"""

    def norm(net: Net, x):
        y = x.view(x.shape[0], 2, -1, *x.shape[2:])
        deviation = (y.var(dim=(2, 3, 4), keepdim=True) + 1e-5).sqrt().expand_as(y)
        return x * torch.sigmoid(net.weight * x) / deviation.reshape(x.shape)

    return _normed(norm)


@case((2, 3, 6, 6), neurons=14)
def switchable_norm() -> nn.Module:
    """Means of single channels and of all of them are mixed before they are subtracted"""

    def norm(net: Net, x):
        own = x.mean((2, 3), keepdim=True)
        return (x - 0.3 * own - 0.7 * own.mean(1, keepdim=True)) * net.weight + net.bias

    return _normed(norm)


@case((2, 3, 6, 6), neurons=14)
def standardized_as_a_whole() -> nn.Module:
    """All values of an activation are brought to mean 0 and variance 1"""
    return _normed(lambda net, x: (x - x.mean()) / x.std())


@case((2, 3, 6, 6), neurons=12, classes=6)
def mean_of_channels_for_others() -> nn.Module:
    """A mean over channels gates other channels: a feature, and what it is taken over stays"""

    def run(net: Net, x):
        y = net.stem(x)
        return net.head(net.other(x) * torch.sigmoid(y.mean(1, keepdim=True)) + net.point(y))

    return Net(run, stem=conv(3, 8), other=conv(3, 6), point=conv(8, 6, 1), head=conv(6, 2))


@case((2, 3, 6, 6), neurons=6)
def mean_and_channels() -> nn.Module:
    """A mean over channels is subtracted from them, and goes into a layer as well"""

    def norm(net: Net, x):
        mean = x.mean(1, keepdim=True)
        return torch.cat([x - mean, mean], 1)

    net = _normed(norm)
    net.middle = conv(9, 6)
    return net


@case((4, 10), neurons=6)
def mean_of_a_weight_as_bias() -> nn.Module:
    """A layer after itself, whose bias is the mean of its weight over what are outputs, too"""

    def run(net: Net, x):
        y = F.relu(net.stem(x))
        for _ in range(2):
            y = F.relu(F.linear(y, net.shared, 1 + net.shared.mean(1)))
        return net.head(F.relu(net.middle(y)))

    return Net(
        run,
        stem=nn.Linear(10, 8),
        shared=values(8, 8),
        middle=nn.Linear(8, 6),
        head=nn.Linear(6, 2),
    )


@case((2, 3, 6, 6), neurons=6)
def mean_written_into_a_channel() -> nn.Module:
    """A mean over channels takes the place of one of them"""

    def norm(net: Net, x):
        y = x.clone()
        y[:, :1] = x.mean(1, keepdim=True)
        return y

    return _normed(norm)


@case((2, 3, 6, 6), neurons=6)
def efficient_channel_attention() -> nn.Module:
    """ECA: a convolution runs along the channels, from each to its neighbours"""

    def norm(net: Net, x):
        y = F.adaptive_avg_pool2d(x, 1).flatten(2).transpose(1, 2)
        return x * torch.sigmoid(net.along(y)).transpose(1, 2).unsqueeze(-1)

    net = _normed(norm)
    net.along = nn.Conv1d(1, 1, 3, padding=1, bias=False)
    return net
