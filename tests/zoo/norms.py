"""Normalisation, activations with weights, dropout, pooling, interpolation, padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from tests.zoo.case import Net, case, conv, up, values


def _with_norms(norm: Callable[[int], nn.Module], dims: int = 2) -> nn.Module:
    return nn.Sequential(
        conv(3, 8, dims=dims),
        norm(8),
        nn.ReLU(inplace=True),
        conv(8, 6, dims=dims),
        norm(6),
        nn.LeakyReLU(0.1, inplace=True),
        conv(6, 2, dims=dims),
    )


@case((2, 3, 4, 4, 4), neurons=14)
def batch_norm() -> nn.Module:
    """Batch norm"""
    return _with_norms(nn.BatchNorm3d, dims=3)


@case((2, 3, 6, 6), neurons=14)
def batch_norm_without_weights() -> nn.Module:
    """Batch norm without affine weights, and without statistics"""
    return nn.Sequential(
        conv(3, 8),
        nn.BatchNorm2d(8, affine=False),
        conv(8, 6),
        nn.BatchNorm2d(6, affine=False, track_running_stats=False),
        conv(6, 2),
    )


@case((2, 3, 6, 6), neurons=8)
def batch_norm_of_input() -> nn.Module:
    """Pre-activation: batch norm of the network's input"""
    return nn.Sequential(nn.BatchNorm2d(3), conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 2))


@case((2, 3, 4, 4, 4), neurons=14)
def instance_norm() -> nn.Module:
    """Instance norm"""
    return _with_norms(nn.InstanceNorm3d, dims=3)


@case((2, 3, 6, 6), neurons=14)
def instance_norm_affine() -> nn.Module:
    """Instance norm with weights"""
    return _with_norms(lambda width: nn.InstanceNorm2d(width, affine=True))


@case((2, 3, 6, 6), neurons=14)
def instance_norm_statistics() -> nn.Module:
    """Instance norm with running statistics, in-place activations"""
    return _with_norms(lambda width: nn.InstanceNorm2d(width, track_running_stats=True))


@case((2, 3, 6, 6), neurons=14)
def group_norm_of_one() -> nn.Module:
    """Group norm with a single group: every channel for itself"""
    return _with_norms(lambda width: nn.GroupNorm(1, width))


@case((2, 3, 6, 6), neurons=14)
def group_norm_of_all() -> nn.Module:
    """Group norm with a group per channel"""
    return _with_norms(lambda width: nn.GroupNorm(width, width))


@case((2, 3, 6, 6), neurons=14, classes=7)
def group_norm() -> nn.Module:
    """Group norm with two groups: both lose the same"""
    return _with_norms(lambda width: nn.GroupNorm(2, width))


@case((2, 3, 6, 6), neurons=14, classes=7)
def group_norm_without_weights() -> nn.Module:
    """Group norm without weights"""
    return _with_norms(lambda width: nn.GroupNorm(2, width, affine=False))


@case((4, 10), neurons=28)
def layer_norm() -> nn.Module:
    """Layer norm between linear layers, with and without weights"""
    return nn.Sequential(
        nn.Linear(10, 16),
        nn.LayerNorm(16),
        nn.Linear(16, 12),
        nn.LayerNorm(12, elementwise_affine=False),
        nn.Linear(12, 3),
    )


@case((2, 3, 6, 6), neurons=8)
def layer_norm_channels_last() -> nn.Module:
    """Layer norm on channels moved last"""

    def run(net: Net, x):
        y = net.norm(net.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return net.head(F.relu(y))

    return Net(run, stem=conv(3, 8), norm=nn.LayerNorm(8), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=8)
def layer_norm_of_volume() -> nn.Module:
    """Layer norm over channels and space"""
    return nn.Sequential(conv(3, 8), nn.LayerNorm((8, 6, 6)), nn.ReLU(), conv(8, 2))


@case((2, 3, 6, 6), neurons=8)
def layer_norm_of_space() -> nn.Module:
    """Layer norm over space alone, without weights: channels are not concerned"""
    norm = nn.LayerNorm((6, 6), elementwise_affine=False)
    return nn.Sequential(conv(3, 8), norm, nn.ReLU(), conv(8, 2))


@case((4, 10), neurons=16)
def rms_norm() -> nn.Module:
    """RMS norm"""
    return nn.Sequential(nn.Linear(10, 16), nn.RMSNorm(16), nn.Linear(16, 3))


@case((2, 3, 6, 6), neurons=6)
def local_response_norm() -> nn.Module:
    """Local response norm looks at neighbours: its channels stay"""
    return nn.Sequential(conv(3, 8), nn.LocalResponseNorm(3), conv(8, 6), nn.ReLU(), conv(6, 2))


def _with_normed_weights(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    layers = [norm(layer) for layer in (conv(3, 8), up(8, 6), conv(6, 2))]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


@case((2, 3, 6, 6), neurons=14)
def weight_norm() -> nn.Module:
    """Weight norm as a parametrization"""
    return _with_normed_weights(parametrizations.weight_norm)


@case((2, 3, 6, 6), neurons=14)
def weight_norm_by_hook() -> nn.Module:
    """Weight norm by a forward hook"""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but alive in many networks
        return _with_normed_weights(nn.utils.weight_norm)


@case((2, 3, 6, 6), neurons=14, both_ends=True)
def spectral_norm() -> nn.Module:
    """Spectral norm as a parametrization"""
    return _with_normed_weights(parametrizations.spectral_norm)


@case((2, 3, 6, 6), neurons=14, both_ends=True)
def spectral_norm_by_hook() -> nn.Module:
    """Spectral norm by a forward hook"""
    return _with_normed_weights(nn.utils.spectral_norm)


@case((2, 3, 6, 6), neurons=14)
def prelu() -> nn.Module:
    """PReLU per channel and with one slope"""
    return nn.Sequential(conv(3, 8), nn.PReLU(8), conv(8, 6), nn.PReLU(), conv(6, 2))


@case((2, 3, 6, 6), neurons=22)
def dropout() -> nn.Module:
    """All kinds of dropout"""
    return nn.Sequential(
        conv(3, 8),
        nn.Dropout2d(0.2),
        conv(8, 6),
        nn.AlphaDropout(0.2),
        conv(6, 8),
        nn.Dropout(0.1, inplace=True),
        nn.FeatureAlphaDropout(0.1),
        conv(8, 2),
    )


@case((2, 3, 12, 12), neurons=22)
def pools() -> nn.Module:
    """Maximum, average, power-average and adaptive pooling"""
    return nn.Sequential(
        conv(3, 8),
        nn.MaxPool2d(2),
        conv(8, 6),
        nn.AvgPool2d(3, stride=1, padding=1),
        nn.Softplus(),
        nn.LPPool2d(2, 2),
        conv(6, 8),
        nn.AdaptiveMaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        conv(8, 2, 1),
    )


@case((2, 3, 8, 8), neurons=8)
def unpooling() -> nn.Module:
    """Maxima put back where they came from"""

    def run(net: Net, x):
        pooled, where = F.max_pool2d(net.stem(x), 2, return_indices=True)
        return net.head(F.max_unpool2d(pooled, where, 2))

    return Net(run, stem=conv(3, 8), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=8)
def interpolation_2d() -> nn.Module:
    """All modes of interpolation"""

    def run(net: Net, x):
        x = net.stem(x)
        for mode in ("nearest", "nearest-exact", "area", "bilinear", "bicubic"):
            x = F.interpolate(x, size=(7, 5), mode=mode)
        x = F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True)
        return net.head(F.interpolate(x, size=(4, 4), mode="bicubic", antialias=True))

    return Net(run, stem=conv(3, 8), head=conv(8, 2))


@case((2, 3, 4, 4, 4), neurons=8)
def interpolation_3d() -> nn.Module:
    """Modes of interpolation, 3D"""
    return nn.Sequential(
        conv(3, 8, dims=3),
        nn.Upsample(scale_factor=2, mode="trilinear"),
        nn.Upsample(size=(3, 4, 5), mode="nearest"),
        nn.Upsample(scale_factor=2, mode="nearest-exact"),
        conv(8, 2, dims=3),
    )


@case((2, 3, 8), neurons=8)
def interpolation_1d() -> nn.Module:
    """Modes of interpolation, 1D"""
    return nn.Sequential(
        conv(3, 8, dims=1),
        nn.Upsample(scale_factor=2, mode="linear"),
        nn.Upsample(scale_factor=2, mode="nearest"),
        conv(8, 2, dims=1),
    )


@case((2, 3, 6, 6), (2, 5, 5, 2), neurons=8)
def grid_sampling() -> nn.Module:
    """Every channel sampled at the same points"""

    def run(net: Net, x, grid):
        return net.head(F.grid_sample(net.stem(x), grid.tanh(), align_corners=False))

    return Net(run, stem=conv(3, 8), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=8)
def spatial_padding() -> nn.Module:
    """Constant, reflected, replicated and circular padding of space"""
    return nn.Sequential(
        conv(3, 8),
        nn.ConstantPad2d((1, 0, 2, -1), 0.5),
        nn.ReflectionPad2d(1),
        nn.ReplicationPad2d((1, 2, 0, 1)),
        nn.CircularPad2d(1),
        conv(8, 2),
    )


@case((2, 3, 6, 6), neurons=14)
def channel_padding() -> nn.Module:
    """Constant channels are added in front and behind; the next layer keeps inputs for them"""

    def run(net: Net, x):
        y = F.pad(F.relu(net.stem(x)), (0, 0, 0, 0, 2, 3), value=0.7)
        return net.head(F.relu(net.middle(y)))

    return Net(run, stem=conv(3, 8), middle=conv(13, 6), head=conv(6, 2))


@case((2, 3, 6, 6), neurons=16, classes=8)
def shortcut_padded_by_number() -> nn.Module:
    """A shortcut padded by a number in the code: the padded channels stay, the others are free"""

    def run(net: Net, x):
        y = F.relu(net.stem(x))
        return net.head(F.relu(net.middle(y) + F.pad(y, (0, 0, 0, 0, 0, 8))))

    return Net(run, stem=conv(3, 8), middle=conv(8, 16), head=conv(16, 2))


@case((2, 3, 6, 6), neurons=24, classes=16)
def shortcut_padded_to_fit() -> nn.Module:
    """A shortcut padded to the width it meets"""

    def run(net: Net, x):
        y = F.relu(net.stem(x))
        z = net.middle(y)
        return net.head(F.relu(z + F.pad(y, (0, 0, 0, 0, 0, z.shape[1] - y.shape[1]))))

    return Net(run, stem=conv(3, 8), middle=conv(8, 16), head=conv(16, 2))


@case((2, 3, 6, 6), neurons=8)
def channel_parameters() -> nn.Module:
    """Scales and shifts per channel as raw parameters"""

    def run(net: Net, x):
        return net.head(F.relu(net.stem(x) * net.scale + net.shift.view(-1, 1, 1)))

    return Net(run, stem=conv(3, 8), scale=values(1, 8, 1, 1), shift=values(8), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=8)
def channel_parameter_list() -> nn.Module:
    """The same in lists and dictionaries of parameters"""

    def run(net: Net, x):
        y = net.stem(x)
        for scale in net.scales:
            y = y * scale
        return net.head(F.relu(y + net.shifts["last"]))

    return Net(
        run,
        stem=conv(3, 8),
        scales=nn.ParameterList([values(8, 1, 1), values(1, 8, 1, 1)]),
        shifts=nn.ParameterDict({"last": values(8, 1, 1)}),
        head=conv(8, 2),
    )


@case((2, 3, 6, 6), neurons=8)
def channel_buffers() -> nn.Module:
    """Means and deviations per channel as buffers"""

    def run(net: Net, x):
        return net.head((net.stem(x) - net.mean) / net.deviation)

    net = Net(run, stem=conv(3, 8), head=conv(8, 2))
    net.register_buffer("mean", torch.rand(8, 1, 1))
    net.register_buffer("deviation", torch.rand(1, 8, 1, 1) + 1, persistent=False)
    return net


@case((2, 3, 6, 6), neurons=6)
def plain_tensor_attribute() -> nn.Module:
    """A tensor that is neither parameter nor buffer: what it meets must stay"""

    def run(net: Net, x):
        return net.head(F.relu(net.middle(net.stem(x) * net.plain)))

    net = Net(run, stem=conv(3, 8), middle=conv(8, 6), head=conv(6, 2))
    net.plain = torch.rand(8, 1, 1, dtype=torch.float64) + 0.5
    return net
