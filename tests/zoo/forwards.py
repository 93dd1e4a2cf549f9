"""Attention, and everything a forward may do: inputs, outputs, control flow, modes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.zoo.case import Net, case, conv, floats, values


@case((2, 5, 10), neurons=12)
def transformer_layer() -> nn.Module:
    """A transformer layer of torch: its width is fixed by its code, the hidden layer is free"""
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Linear(10, 8), layer, nn.Linear(8, 3))


@case((2, 5, 10), neurons=8 + 6)
def multihead_attention() -> nn.Module:
    """Attention of torch checks the width that comes in: that stays, what goes out is free"""

    def run(net: Net, x):
        x = net.enter(x)
        return net.head(F.relu(net.middle(net.attention(x, x, x)[0])))

    return Net(
        run,
        enter=nn.Linear(10, 8),
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
        middle=nn.Linear(8, 6),
        head=nn.Linear(6, 3),
    )


def _attention(attend) -> nn.Module:
    def run(net: Net, x):
        x = net.enter(x)
        q, k, v = (
            layer(x).view(*x.shape[:2], 4, -1).transpose(1, 2) for layer in (net.q, net.k, net.v)
        )
        return net.head(net.project(attend(q, k, v).transpose(1, 2).flatten(2)))

    return Net(
        run,
        enter=nn.Linear(10, 16),
        q=nn.Linear(16, 16),
        k=nn.Linear(16, 16),
        v=nn.Linear(16, 16),
        project=nn.Linear(16, 8),
        head=nn.Linear(8, 3),
    )


@case((2, 5, 10), neurons=16 + 48 + 8, classes=16 + 4 + 4 + 8, both_ends=True)
def attention_by_hand() -> nn.Module:
    """Queries, keys and values by views: all heads lose the same"""
    return _attention(lambda q, k, v: (q @ k.transpose(-1, -2) * 0.5).softmax(-1) @ v)


@case((2, 5, 10), neurons=16 + 16 + 8, classes=16 + 4 + 8)
def scaled_dot_product() -> nn.Module:
    """The scale depends on the width of queries and keys: these stay, values are free"""
    return _attention(F.scaled_dot_product_attention)


@case((2, 5, 10), neurons=16 + 48 + 8, classes=16 + 4 + 4 + 8, both_ends=True)
def scaled_dot_product_with_scale() -> nn.Module:
    """With a scale of its own everything is free"""
    return _attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5))


@case((2, 5, 10), neurons=16 + 48 + 8, classes=16 + 4 + 8, both_ends=True)
def attention_in_one_layer() -> nn.Module:
    """Queries, keys and values from one layer, cut by view and unbind"""

    def run(net: Net, x):
        x = net.enter(x)
        qkv = net.qkv(x).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = (q @ k.transpose(-1, -2) * 0.5).softmax(-1) @ v
        return net.head(net.project(y.transpose(1, 2).flatten(2)))

    return Net(
        run,
        enter=nn.Linear(10, 16),
        qkv=nn.Linear(16, 48),
        project=nn.Linear(16, 8),
        head=nn.Linear(8, 3),
    )


@case((2, 3, 4, 4), neurons=8 + 4 + 4 + 4 + 8, classes=8 + 4 + 4, both_ends=True)
def non_local() -> nn.Module:
    """A non-local block: attention between places, by 1 x 1 convolutions"""

    def run(net: Net, x):
        x = net.stem(x)
        theta, phi, g = (layer(x).flatten(2) for layer in (net.theta, net.phi, net.g))
        weights = torch.bmm(theta.transpose(1, 2), phi).softmax(-1)
        y = torch.bmm(g, weights.transpose(1, 2)).view(x.shape[0], -1, *x.shape[2:])
        return net.head(F.relu(x + net.w(y)))

    return Net(
        run,
        stem=conv(3, 8),
        theta=conv(8, 4, 1),
        phi=conv(8, 4, 1),
        g=conv(8, 4, 1),
        w=conv(4, 8, 1),
        head=conv(8, 2),
    )


@case((2, 3, 4, 4), neurons=6)
def channel_attention() -> nn.Module:
    """Attention between channels (DANet): a softmax over channels keeps them"""

    def run(net: Net, x):
        y = net.stem(x)
        flat = y.flatten(2)
        mixed = torch.bmm(torch.bmm(flat, flat.transpose(1, 2)).softmax(-1), flat).view_as(y)
        return net.head(F.relu(net.middle(y + mixed)))

    return Net(run, stem=conv(3, 8), middle=conv(8, 6), head=conv(6, 2))


@case((2, 3, 4, 4), neurons=8 + 6)
def patches_with_positions() -> nn.Module:
    """A patch embedding with a position parameter and a class token"""

    def run(net: Net, x):
        y = net.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([net.token.expand(x.shape[0], -1, -1), y], dim=1) + net.positions
        return net.head(F.gelu(net.middle(net.norm(y))).mean(1))

    return Net(
        run,
        patches=nn.Conv2d(3, 8, 2, stride=2),
        token=values(1, 1, 8),
        positions=values(1, 5, 8),
        norm=nn.LayerNorm(8),
        middle=nn.Linear(8, 6),
        head=nn.Linear(6, 3),
    )


@case((2, 3, 6, 6), (2, 1, 6, 6), neurons=10)
def several_inputs() -> nn.Module:
    """Two inputs, each with its own stem"""

    def run(net: Net, image, depth):
        return net.head(F.relu(torch.cat([net.a(image), net.b(depth)], 1)))

    return Net(run, a=conv(3, 6), b=conv(1, 4), head=conv(10, 2))


def _image_in_dict():
    (image, scale) = floats((2, 3, 6, 6), (2, 1, 1, 1))()
    return ({"image": image, "extra": [scale, None]},)


@case(inputs=_image_in_dict, neurons=8)
def dict_input() -> nn.Module:
    """A nested input"""

    def run(net: Net, batch):
        return net.head(F.relu(net.stem(batch["image"]) * batch["extra"][0]))

    return Net(run, stem=conv(3, 8), head=conv(8, 2))


@case((2, 3, 6, 6), neurons=8)
def dict_output() -> nn.Module:
    """Outputs in a dictionary; one that leaves on the way is pinned"""

    def run(net: Net, x):
        features = F.relu(net.stem(x))
        middle = net.middle(features)
        return {"main": net.head(F.relu(middle)), "aux": (middle,)}

    return Net(run, stem=conv(3, 8), middle=conv(8, 6), head=conv(6, 2))


@dataclass
class _Output:
    logits: Tensor
    hidden: list[Tensor]


@case((2, 3, 6, 6), neurons=8)
def dataclass_output() -> nn.Module:
    """Outputs in a data class inside of a tuple"""

    def run(net: Net, x):
        middle = net.middle(F.relu(net.stem(x)))
        return (_Output(net.head(F.relu(middle)), [middle]), 7)

    return Net(run, stem=conv(3, 8), middle=conv(8, 6), head=conv(6, 2))


@case((2, 3, 6, 6), neurons=8)
def never_called() -> nn.Module:
    """Modules and parameters that take no part stay as they are"""
    return Net(
        lambda net, x: net.head(F.relu(net.stem(x))),
        stem=conv(3, 8),
        spare=nn.Sequential(conv(8, 5), nn.BatchNorm2d(5)),
        unused=values(8),
        head=conv(8, 2),
    )


@case((2, 3, 6, 6), neurons=14)
def deep_supervision() -> nn.Module:
    """A head that runs in train mode only shrinks with what feeds it"""

    def run(net: Net, x):
        a = F.relu(net.a(x))
        b = F.relu(net.b(a))
        return (net.head(b), net.auxiliary(a)) if net.training else net.head(b)

    return Net(run, a=conv(3, 8), b=conv(8, 6), head=conv(6, 2), auxiliary=conv(8, 2))


@case((2, 3, 6, 6), neurons=6)
def tied_in_training() -> nn.Module:
    """What train mode alone mixes (a softmax over channels) is pinned as well"""

    def run(net: Net, x):
        a = F.relu(net.a(x))
        out = net.head(F.relu(net.b(a)))
        return (out, a.softmax(1).mean()) if net.training else out

    return Net(run, a=conv(3, 8), b=conv(8, 6), head=conv(6, 2))


@case((2, 3, 8, 8), neurons=8 + 8 + 8, classes=8)
def control_flow() -> nn.Module:
    """Loops and branches of Python over shapes"""

    def run(net: Net, x):
        x = net.stem(x)
        while x.shape[-1] > 2:
            for layer in net.layers:
                x = x + F.relu(layer(x))
            x = F.max_pool2d(x, 2)
        return net.head(x) if x.dim() == 4 else None

    layers = nn.ModuleList([conv(8, 8), conv(8, 8)])
    return Net(run, stem=conv(3, 8), layers=layers, head=conv(8, 2))


@case((2, 3, 6, 6), neurons=14)
def checkpointing() -> nn.Module:
    """Activation checkpointing"""

    def run(net: Net, x):
        y = checkpoint(net.a, x, use_reentrant=False)
        return net.head(checkpoint(lambda z: F.relu(net.b(F.relu(z))), y, use_reentrant=False))

    return Net(run, a=conv(3, 8), b=conv(8, 6), head=conv(6, 2))


@case((2, 3, 6, 6), neurons=14)
def checkpointing_reentrant() -> nn.Module:
    """Activation checkpointing of the older kind"""

    def run(net: Net, x):
        y = F.relu(net.a(x))
        y = checkpoint(net.b, y, use_reentrant=True) if net.training else net.b(y)
        return net.head(y)

    return Net(run, a=conv(3, 8), b=nn.Sequential(conv(8, 6), nn.ReLU()), head=conv(6, 2))


@case((2, 3, 6, 6), neurons=14)
def autocast() -> nn.Module:
    """A part that asks for a precision of its own"""

    def run(net: Net, x):
        with torch.autocast("cpu", enabled=False):
            y = F.relu(net.a(x))
        return net.head(F.relu(net.b(y.to(x.dtype).type_as(x))))

    return Net(run, a=conv(3, 8), b=conv(8, 6), head=conv(6, 2))


@case((2, 3, 6, 6), neurons=8 + 6)
def remembered_features() -> nn.Module:
    """A module that keeps its last activation"""

    def run(net: Net, x):
        net.last = F.relu(net.a(x))
        return net.head(F.relu(net.b(net.last)))

    return Net(run, a=conv(3, 8), b=conv(8, 6), head=conv(6, 2))


@case(
    inputs=lambda: (torch.arange(12).reshape(2, 6) % 5, *floats((2, 6, 4))()),
    neurons=8 + 6,
)
def embedding_plus_linear() -> nn.Module:
    """An embedding added to features: it goes with the neurons it meets"""

    def run(net: Net, tokens, features):
        return net.head(F.relu(net.middle(net.embed(tokens) + net.enter(features))))

    return Net(
        run,
        embed=nn.Embedding(5, 8),
        enter=nn.Linear(4, 8),
        middle=nn.Linear(8, 6),
        head=nn.Linear(6, 3),
    )


@case((2, 3, 6, 6), neurons=8 + 6)
def cached_constant() -> nn.Module:
    """A module that makes a tensor at its first call and keeps it"""

    def run(net: Net, x):
        if net.ramp is None:
            net.ramp = torch.linspace(0, 1, x.shape[-1], dtype=x.dtype)
        return net.head(F.relu(net.b(F.relu(net.a(x) + net.ramp))))

    net = Net(run, a=conv(3, 8), b=conv(8, 6), head=conv(6, 2))
    net.ramp = None
    return net


@case((2, 3, 6, 6), neurons=8 + 6)
def decision_by_attribute() -> nn.Module:
    """A decision by the value of a tensor that the model keeps as a plain attribute"""

    def run(net: Net, x):
        y = F.relu(net.a(x))
        if (net.switch * 2)[1].item() > 1:
            y = net.b(y)
        return net.head(F.relu(y))

    net = Net(run, a=conv(3, 8), b=conv(8, 6), head=conv(6, 2))
    net.switch = torch.tensor([0.0, 1.0])
    return net
