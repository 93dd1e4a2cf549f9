"""Upsampling, pooling and softmax in channels-last layout give what PyTorch gives."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from ranp.models.unet3d import UNet3D
from ranp.speed.functions import _REPLACEMENTS, FastFunctions, set_fast_functions
from ranp.speed.layout import as_layout, layout_of
from ranp.speed.replacing import rebuilt_as
from ranp.speed.softmax import ChannelsLastSoftmax, PointwiseSoftmax

three = st.tuples(*[st.integers(1, 3)] * 3)


def volume(*shape, seed=0):
    torch.manual_seed(seed)
    return as_layout(torch.randn(shape), "channels-last")


@pytest.fixture
def taken(monkeypatch):
    """The functions whose call was not passed on to PyTorch."""
    names = []

    def noted(func, ours):
        def call(*args, **kwargs):
            result = ours(*args, **kwargs)
            if result is not None:
                names.append(func.__name__ if func is F.interpolate else "max_pool3d")
            return result

        return call

    for func, ours in list(_REPLACEMENTS.items()):
        monkeypatch.setitem(_REPLACEMENTS, func, noted(func, ours))
    return names


@settings(max_examples=40)
@given(three, three, st.integers(1, 3), st.integers(2, 5), st.booleans())
def test_upsampling_has_the_gradient_of_pytorch(size, factors, samples, channels, is_joined):
    """Alone, or joined to a skip connection, where its gradient is a slice."""
    results = []
    for ours in (False, True):
        x = volume(samples, channels, *size).requires_grad_()
        skip = volume(samples, 3, *(s * f for s, f in zip(size, factors, strict=True)), seed=1)
        with FastFunctions() if ours else torch.enable_grad():
            y = F.interpolate(x, size=skip.shape[2:], mode="nearest")
        joined = torch.cat([skip, y], 1) if is_joined else y
        weights = volume(*joined.shape, seed=2)
        (joined * weights).sum().backward()
        results.append((y.detach(), x.grad))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "is_ours"),
    [
        ({"scale_factor": 2}, True),
        ({"scale_factor": (2.0, 1.0, 3.0)}, True),
        ({"size": (8, 4, 4)}, True),
        ({"size": 8}, True),
        ({"scale_factor": 1.5}, False),
        ({"size": (6, 4, 4)}, False),
        ({"scale_factor": 2, "mode": "trilinear"}, False),
        ({"scale_factor": 2, "recompute_scale_factor": True}, False),
    ],
)
def test_upsampling_by_whole_numbers_is_ours(options, is_ours, taken):
    x = volume(1, 3, 4, 4, 4).requires_grad_()
    expected = F.interpolate(x, **options)
    with FastFunctions():
        got = F.interpolate(x, **options)
    assert torch.equal(got, expected) and taken == ["interpolate"] * is_ours
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (expected, got)]
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"size": 8, "scale_factor": 2},
        {"size": (8, 8)},
        {"scale_factor": (2, 2)},
    ],
)
def test_errors_of_upsampling_are_those_of_pytorch(options):
    x, said = volume(1, 3, 4, 4, 4).requires_grad_(), []
    for mode in (nullcontext(), FastFunctions()):
        with mode, pytest.raises((ValueError, AssertionError)) as caught:
            F.interpolate(x, **options)
        said.append(str(caught.value))
    assert said[0] == said[1]


@settings(max_examples=40)
@given(three, three, st.integers(1, 2), st.integers(2, 5))
def test_pooling_is_that_of_pytorch(kernel, rest, samples, channels):
    """Also where voxels are left over, and where some are no numbers."""
    size = [2 * k + min(r, k) - 1 for k, r in zip(kernel, rest, strict=True)]
    x = volume(samples, channels, *size)
    x[0, 0, 0, 0, 0] = float("nan")
    with FastFunctions():
        got = F.max_pool3d(x, kernel)
    torch.testing.assert_close(got, F.max_pool3d(x, kernel), rtol=0, atol=0, equal_nan=True)
    assert got.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize(
    ("options", "is_ours"),
    [
        ({}, True),
        ({"stride": 2}, True),
        ({"stride": 1}, False),
        ({"padding": 1}, False),
        ({"dilation": 2}, False),
        ({"ceil_mode": True}, False),
        ({"return_indices": True}, False),
    ],
)
def test_other_pooling_is_left_to_pytorch(options, is_ours, taken):
    x = volume(1, 3, 5, 5, 5)
    with FastFunctions():
        got = nn.MaxPool3d(2, **options)(x)
    expected = nn.MaxPool3d(2, **options)(x)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert taken == ["max_pool3d"] * is_ours


@pytest.mark.parametrize("kernel", [(2,), 1])
def test_odd_kernels_are_left_to_pytorch(kernel, taken):
    """One number in a tuple is that of all dimensions; windows of one voxel are a copy."""
    x = volume(1, 3, 5, 5, 5)
    with FastFunctions():
        got = F.max_pool3d(x, kernel)
    assert torch.equal(got, F.max_pool3d(x, kernel)) and taken == []
    assert got.data_ptr() != x.data_ptr()


def test_what_is_not_channels_last_or_not_plain_is_left_to_pytorch(taken):
    x = torch.randn(1, 3, 4, 4, 4, requires_grad=True)
    with FastFunctions():
        F.interpolate(x, scale_factor=2)
        F.max_pool3d(x.detach(), 2)
        F.max_pool3d(volume(1, 3, 4, 4, 4).requires_grad_(), 2)
        F.interpolate(volume(1, 3, 4, 4, 4).double().requires_grad_(), scale_factor=2)
        F.interpolate(torch.randn(1, 3, 4, requires_grad=True), scale_factor=2)
    assert taken == []


def modes():
    return torch.overrides._get_current_function_mode_stack()


def test_the_mode_is_on_only_while_the_network_runs():
    class Asks(nn.Module):
        def forward(self, x):
            if x is None:
                raise ValueError("nothing")
            return [type(mode) for mode in modes()]

    model = Asks()
    set_fast_functions(model)
    assert modes() == [] and model(torch.zeros(1)) == [FastFunctions]
    with pytest.raises(ValueError, match="nothing"):
        model(None)
    assert modes() == []


def test_a_network_with_the_mode_is_its_own_kind_and_can_be_copied():
    torch.manual_seed(0)
    plain = UNet3D(1, 2, levels=2, base_width=4)
    model = copy.deepcopy(plain)
    for _ in range(2):  # twice is as good as once
        set_fast_functions(model)
    assert type(model) is UNet3D and list(model.state_dict()) == list(plain.state_dict())
    x = volume(1, 2, 8, 8, 8)[:, :1]
    taken: list[type] = []
    make, arguments, state = model.__reduce_ex__(2)[:3]
    sent = make(*arguments)
    sent.__setstate__(copy.deepcopy(state))
    for twin in (model, copy.deepcopy(model), sent):
        twin.register_forward_pre_hook(lambda *_: taken.extend(map(type, modes())))
        torch.testing.assert_close(twin(x), plain(x))
    assert taken == [FastFunctions] * 3


@settings(max_examples=30)
@given(st.integers(1, 2), st.integers(2, 9), st.integers(1, 9), st.integers(1, 6), st.booleans())
def test_softmax_by_slabs_is_softmax(samples, channels, classes, edge, has_bias):
    x = volume(samples, channels, edge, 7, edge)
    conv = nn.Conv3d(channels, classes, 1, bias=has_bias)
    fused = rebuilt_as(PointwiseSoftmax, conv)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("ranp.speed.softmax._SLAB", 50)  # several slabs, the last one shorter
        got = ChannelsLastSoftmax(1)(x)
        torch.testing.assert_close(got, torch.softmax(x, 1), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(fused(x), torch.softmax(conv(x), 1), rtol=1e-5, atol=1e-6)
        assert layout_of(got) == layout_of(fused(x)) == "standard"
    # Large numbers do not overflow, and gradients are PyTorch's.
    with torch.no_grad():
        assert torch.equal(ChannelsLastSoftmax(1)(1e6 * x).isfinite(), torch.ones_like(x) > 0)
    x.requires_grad_()
    modules = (ChannelsLastSoftmax(1), nn.Softmax(1))
    grads = [torch.autograd.grad(module(x)[:, 0].sum(), x)[0] for module in modules]
    torch.testing.assert_close(grads[0], grads[1])
