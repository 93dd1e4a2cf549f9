"""What the networks compute: shapes, padding, eval-mode softmax, names."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from ranp.errors import UsageError
from ranp.models import I3D, MobileNetV2, UNet3D
from ranp.models.i3d import Inception, SameMaxPool3d, Widths, pad_same


@pytest.mark.parametrize("levels", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [(16, 16, 16), (19, 16, 21)])
def test_unet_gives_scores_at_the_input_size(levels: int, size: tuple[int, int, int]) -> None:
    model = UNet3D(2, 3, levels=levels, base_width=4)
    assert model(torch.randn(2, 2, *size)).shape == (2, 3, *size)


def test_unet_widths_follow_base_width_and_cap() -> None:
    model = UNet3D(5, 2, levels=4, base_width=8, width_cap=20)
    widths = {
        name: module.weight.shape[:2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv3d)
    }
    assert widths == {
        "encoder.0.conv1": (5, 5),  # never fewer than come in
        "encoder.0.conv2": (8, 5),
        "encoder.1.conv1": (8, 8),
        "encoder.1.conv2": (16, 8),
        "encoder.2.conv1": (16, 16),
        "encoder.2.conv2": (20, 16),
        "encoder.3.conv1": (20, 20),
        "encoder.3.conv2": (20, 20),
        "decoder.0.conv1": (20, 40),
        "decoder.0.conv2": (20, 20),
        "decoder.1.conv1": (16, 36),
        "decoder.1.conv2": (16, 16),
        "decoder.2.conv1": (8, 24),
        "decoder.2.conv2": (8, 8),
        "head": (2, 8),
    }


def test_unet_concatenates_skip_first_upsampled_second() -> None:
    model = UNet3D(1, 2, levels=2, base_width=4).double().eval()
    seen: dict[str, torch.Tensor] = {}
    for name in ("encoder.0.relu2", "encoder.1.relu2"):
        model.get_submodule(name).register_forward_hook(
            lambda *args, name=name: seen.update({name: args[-1].clone()})
        )
    model.get_submodule("decoder.0.conv1").register_forward_pre_hook(
        lambda _, args: seen.update(joined=args[0])
    )
    model(torch.randn(1, 1, 4, 4, 4, dtype=torch.float64))
    skip, below = seen["encoder.0.relu2"], seen["encoder.1.relu2"]
    nearest = below.repeat_interleave(2, 2).repeat_interleave(2, 3).repeat_interleave(2, 4)
    assert torch.equal(seen["joined"], torch.cat([skip, nearest], dim=1))


def test_unet_softmax_runs_in_eval_mode_only() -> None:
    torch.manual_seed(0)
    with_softmax = UNet3D(1, 4, levels=2, base_width=4, softmax=True)
    without = UNet3D(1, 4, levels=2, base_width=4)
    without.load_state_dict(with_softmax.state_dict())
    x = torch.randn(2, 1, 8, 8, 8)
    assert torch.equal(with_softmax.train()(x), without.train()(x))
    assert torch.equal(with_softmax.eval()(x), without.eval()(x).softmax(dim=1))


@pytest.mark.parametrize("argument", ["levels", "base_width", "width_cap"])
def test_unet_refuses_sizes_below_one(argument: str) -> None:
    with pytest.raises(UsageError, match=f"{argument} of UNet3D must be at least 1, got 0"):
        UNet3D(1, 2, **{argument: 0})


def test_mobilenet_matches_a_plain_reading_of_its_blocks() -> None:
    """Eval mode, float64, against functional calls on the same weights."""
    torch.manual_seed(0)
    model = MobileNetV2(in_channels=2, classes=7).double().eval()
    x = torch.randn(2, 2, 4, 24, 20, dtype=torch.float64)

    def unit(y: torch.Tensor, name: str, stride: object = 1, linear: bool = False) -> torch.Tensor:
        conv = model.get_submodule(f"{name}.conv")
        norm = model.get_submodule(f"{name}.norm")
        weight = conv.weight
        groups = y.shape[1] if "depthwise" in name else 1
        y = F.conv3d(y, weight, stride=stride, padding=weight.shape[-1] // 2, groups=groups)
        y = F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        return y if linear else y.clamp(0, 6)

    y = unit(x, "stem", stride=(1, 2, 2))
    block = 0
    for repeats, stride in ((1, 1), (2, 2), (3, 2), (4, 2), (3, 1), (3, 2), (1, 1)):
        for repeat in range(repeats):
            z = unit(y, f"blocks.{block}.expand") if block else y
            z = unit(z, f"blocks.{block}.depthwise", stride=1 if repeat else stride)
            z = unit(z, f"blocks.{block}.project", linear=True)
            y = y + z if repeat else z
            block += 1
    y = unit(y, "last").mean(dim=(2, 3, 4))
    expected = y @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-12)


def test_what_the_networks_of_ucf101_drop_before_their_last_layer() -> None:
    assert MobileNetV2().dropout.p == 0.2
    model = I3D()
    assert model.dropout.p == 0.5
    nn.init.normal_(model.head.bias)
    model.dropout.p = 1.0  # nothing else reaches the last layer
    torch.testing.assert_close(model(torch.rand(1, 3, 16, 193, 193)), model.head.bias[None])


def test_inception_matches_a_plain_reading_of_its_branches() -> None:
    torch.manual_seed(0)
    block = Inception(5, Widths(2, 3, 4, 5, 6, 7)).double().eval()
    for norm in (module for module in block.modules() if isinstance(module, nn.BatchNorm3d)):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    x = torch.rand(2, 5, 3, 4, 6, dtype=torch.float64)

    def unit(y: torch.Tensor, name: str) -> torch.Tensor:
        unit = block.get_submodule(name)
        y = F.conv3d(y, unit.conv.weight, padding="same")
        shape = (1, -1, 1, 1, 1)
        y = y / (1 + 1e-3) ** 0.5 * unit.norm.weight.view(shape) + unit.norm.bias.view(shape)
        return y.clamp(min=0)

    expected = torch.cat(
        [
            unit(x, "branch0"),
            unit(unit(x, "branch1_reduce"), "branch1"),
            unit(unit(x, "branch2_reduce"), "branch2"),
            unit(F.max_pool3d(x, 3, stride=1, padding=1), "branch3"),
        ],
        dim=1,
    )
    torch.testing.assert_close(block(x), expected, rtol=1e-10, atol=1e-12)


def test_i3d_averages_its_logits_over_time() -> None:
    torch.manual_seed(0)
    model = I3D(in_channels=1, classes=5).eval()
    seen: list[torch.Tensor] = []
    model.head.register_forward_hook(lambda *args: seen.append(args[-1]))
    with torch.no_grad():
        logits = model(torch.randn(1, 1, 17, 193, 193))
    (per_frame,) = seen
    assert per_frame.shape == (1, 5, 2, 1, 1)  # 17 frames: 9, 5, 3, then windows of 2
    torch.testing.assert_close(logits, per_frame[..., 0, 0].mean(dim=2))


def test_i3d_batch_norms_have_the_published_constants() -> None:
    norms = [module for module in I3D().modules() if isinstance(module, nn.BatchNorm3d)]
    assert len(norms) == 57
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-3, 0.01)}


def test_i3d_has_a_bias_in_the_last_layer_only() -> None:
    biased = [name for name, parameter in I3D().named_parameters() if name.endswith("bias")]
    assert [name for name in biased if "norm" not in name] == ["head.bias"]


def tensorflow_same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """The formula of TensorFlow's documentation of 'SAME' padding."""
    total = max(kernel - stride, 0) if size % stride == 0 else max(kernel - size % stride, 0)
    return total // 2, total - total // 2


sizes = st.tuples(*[st.integers(1, 12)] * 3)
kernels = st.tuples(*[st.integers(1, 7)] * 3)
strides = st.tuples(*[st.integers(1, 3)] * 3)


@given(size=sizes, kernel=kernels, stride=strides)
def test_padding_is_tensorflows_same(
    size: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    x = torch.ones(1, 1, *size)
    expected = x
    for dim, (n, k, s) in enumerate(zip(size, kernel, stride, strict=True), start=2):
        before, after = tensorflow_same(n, k, s)
        shape = list(expected.shape)
        parts = [torch.zeros([*shape[:dim], pad, *shape[dim + 1 :]]) for pad in (before, after)]
        expected = torch.cat([parts[0], expected, parts[1]], dim=dim)
    assert torch.equal(pad_same(x, kernel, stride), expected)
    pooled = SameMaxPool3d(kernel, stride)(x)
    assert pooled.shape[2:] == tuple(-(-n // s) for n, s in zip(size, stride, strict=True))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (UNet3D(1, 3, levels=3, base_width=4), (2, 1, 8, 8, 8)),
        (MobileNetV2(1, 3), (2, 1, 2, 33, 33)),
    ],
    ids=["unet", "mobilenet"],
)
def test_every_parameter_gets_a_gradient_and_a_copy_computes_the_same(
    model: nn.Module, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    twin = copy.deepcopy(model).eval()
    assert torch.equal(model.eval()(x), twin(x))
    model.train()(x).square().mean().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []
