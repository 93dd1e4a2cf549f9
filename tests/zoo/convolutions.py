"""Convolutions and linear layers of every kind."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.zoo.case import Net, case, conv, up, values


@case((2, 3, 12), neurons=14)
def conv_1d() -> nn.Module:
    """A chain of 1D convolutions"""
    return nn.Sequential(
        conv(3, 8, dims=1), nn.ReLU(), conv(8, 6, dims=1), nn.ReLU(), conv(6, 2, dims=1)
    )


@case((2, 3, 8, 8), neurons=14)
def conv_2d() -> nn.Module:
    """A chain of 2D convolutions"""
    return nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 6), nn.ReLU(), conv(6, 2))


@case((2, 3, 4, 6, 4), neurons=14)
def conv_3d() -> nn.Module:
    """A chain of 3D convolutions"""
    return nn.Sequential(
        conv(3, 8, dims=3), nn.ReLU(), conv(8, 6, dims=3), nn.ReLU(), conv(6, 2, dims=3)
    )


@case((2, 3, 8), neurons=14)
def transposed_1d() -> nn.Module:
    """A transposed convolution, 1D"""
    return nn.Sequential(conv(3, 8, dims=1), up(8, 6, dims=1), nn.ReLU(), conv(6, 2, dims=1))


@case((2, 3, 6, 6), neurons=14)
def transposed_2d() -> nn.Module:
    """A transposed convolution, 2D"""
    return nn.Sequential(conv(3, 8), up(8, 6), nn.ReLU(), conv(6, 2))


@case((2, 3, 4, 4, 4), neurons=14)
def transposed_3d() -> nn.Module:
    """A transposed convolution, 3D"""
    return nn.Sequential(conv(3, 8, dims=3), up(8, 6, dims=3), nn.ReLU(), conv(6, 2, dims=3))


@case((2, 3, 8, 8), neurons=20, classes=5)
def grouped() -> nn.Module:
    """Groups stay rectangular: 8 inputs in 4 groups of 2, 12 outputs in 4 groups of 3"""
    return nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 12, groups=4), nn.ReLU(), conv(12, 2))


@case((2, 3, 6, 6), neurons=20, classes=5)
def grouped_transposed() -> nn.Module:
    """The same, transposed"""
    return nn.Sequential(conv(3, 8), nn.ReLU(), up(8, 12, groups=4), nn.ReLU(), conv(12, 2))


@case((2, 4, 8, 8), neurons=8, classes=4)
def grouped_input() -> nn.Module:
    """Groups on the network's input: its channels stay, the outputs go in pairs"""
    return nn.Sequential(conv(4, 8, groups=2), nn.ReLU(), conv(8, 2))


@case((2, 3, 8, 8), neurons=16, classes=8)
def depthwise() -> nn.Module:
    """A depthwise convolution follows its input"""
    return nn.Sequential(conv(3, 8), conv(8, 8, groups=8), nn.ReLU(), conv(8, 2))


@case((2, 3, 4, 4, 4), neurons=24, classes=8)
def depthwise_multiplier() -> nn.Module:
    """Depthwise with multiplier 2: three neurons a class"""
    return nn.Sequential(
        conv(3, 8, dims=3), conv(8, 16, dims=3, groups=8), nn.ReLU(), conv(16, 2, dims=3)
    )


@case((2, 3, 8, 8), neurons=8)
def depthwise_input() -> nn.Module:
    """A depthwise convolution of the network's input cannot lose anything"""
    return nn.Sequential(conv(3, 6, groups=3), conv(6, 8), nn.ReLU(), conv(8, 2))


@case((2, 3, 6, 6), neurons=16, classes=8)
def depthwise_transposed() -> nn.Module:
    """A depthwise transposed convolution"""
    return nn.Sequential(conv(3, 8), up(8, 8, groups=8), nn.ReLU(), conv(8, 2))


@case((2, 3, 6, 6), neurons=24, classes=8)
def depthwise_transposed_multiplier() -> nn.Module:
    """A depthwise transposed convolution with multiplier 2"""
    return nn.Sequential(conv(3, 8), up(8, 16, groups=8), nn.ReLU(), conv(16, 2))


@case((2, 3, 8, 8), neurons=22)
def convolution_options() -> nn.Module:
    """Stride, dilation, no bias, padding modes"""
    return nn.Sequential(
        conv(3, 8, padding_mode="circular"),
        conv(8, 6, bias=False, padding_mode="reflect", stride=2),
        nn.Conv2d(6, 8, 3, padding="same", dilation=2, padding_mode="replicate"),
        nn.Tanh(),
        conv(8, 2, bias=False),
    )


@case((4, 10), neurons=28)
def linear() -> nn.Module:
    """A multilayer perceptron"""
    return nn.Sequential(
        nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 12, bias=False), nn.Tanh(), nn.Linear(12, 3)
    )


@case((2, 3, 8, 8), neurons=16, classes=16)
def single_channel() -> nn.Module:
    """A layer of one neuron in the middle keeps it"""
    return nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 1), conv(1, 8), nn.ReLU(), conv(8, 2))


@case((2, 3, 8, 8), neurons=20, both_ends=True)
def functional_convolutions() -> nn.Module:
    """Raw parameters in functional convolutions"""

    def run(net: Net, x):
        x = F.relu(F.conv2d(x, net.first, net.bias, padding=1))
        x = F.relu(F.conv_transpose2d(x, net.second, stride=2))
        return F.conv2d(F.conv2d(x, net.third), net.fourth)

    return Net(
        run,
        first=values(8, 3, 3, 3),
        bias=values(8),
        second=values(8, 6, 2, 2),
        third=values(6, 6, 1, 1),
        fourth=values(2, 6, 1, 1),
    )


@case((4, 10), neurons=22, both_ends=True)
def matrix_products() -> nn.Module:
    """Linear layers written as products with raw parameters, from either side"""

    def run(net: Net, x):
        x = F.relu(x @ net.first + net.bias)
        x = F.relu(net.second @ x.t()).t()
        return x @ net.third

    return Net(run, first=values(10, 16), bias=values(16), second=values(6, 16), third=values(6, 3))


@case((2, 3, 6, 6), neurons=14, both_ends=True)
def einsum() -> nn.Module:
    """A 1 x 1 convolution written as einsum"""

    def run(net: Net, x):
        return net.head(F.relu(torch.einsum("bchw,oc->bohw", net.stem(x), net.mix)))

    return Net(run, stem=conv(3, 8), mix=values(6, 8), head=conv(6, 2))


@case((2, 3, 6, 6), neurons=14)
def unfolded_convolution() -> nn.Module:
    """A convolution as unfold and linear"""

    def run(net: Net, x):
        windows = F.unfold(F.relu(net.stem(x)), 3, padding=1).transpose(1, 2)
        y = net.mix(windows).transpose(1, 2)
        return net.head(F.relu(y.reshape(x.shape[0], -1, *x.shape[2:])))

    return Net(run, stem=conv(3, 8), mix=nn.Linear(72, 6), head=conv(6, 2))


@case(inputs=lambda: (torch.arange(12).reshape(2, 6) % 20,), neurons=12)
def embedding() -> nn.Module:
    """An embedding has columns but no neurons of its own"""
    return nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))
