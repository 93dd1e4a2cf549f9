"""Every way to compute a convolution gives the library's result."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from ranp.speed.convolution import (
    DATA,
    FORWARD,
    WEIGHT,
    Route,
    RoutedConv3d,
    available_routes,
)
from ranp.speed.filling import FILLING, available_fillings
from ranp.speed.geometry import Geometry
from ranp.speed.layout import as_layout, layout_of
from ranp.speed.normalization import ChannelsLastBatchNorm3d
from ranp.speed.replacing import rebuilt_as
from ranp.speed.selection import TOLERANCE, sum_tolerance

three = st.tuples(*[st.integers(1, 3)] * 3)
layouts = st.sampled_from(["standard", "channels-last"])


@st.composite
def convolutions(draw):
    """A convolution, and a volume at least as large as its kernel."""
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    kernel, dilation = draw(three), draw(st.sampled_from([(1, 1, 1), (2, 1, 2)]))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    # Not more padding than the kernel reaches: PyTorch's own gradient crashes on some of that.
    padding = tuple(draw(st.integers(0, r - 1)) for r in reach)
    size = [smallest + draw(st.integers(0, 4)) for smallest in reach]
    stride = draw(st.sampled_from([(1, 1, 1), (1, 1, 1), (2, 1, 2)]))
    g = Geometry(kernel, stride, padding, dilation, groups)
    channels = [groups * draw(st.integers(1, 4)) for _ in range(2)]
    return g, draw(st.integers(1, 3)), *channels, size


def library_results(x, weight, bias, g):
    """Output and gradients by autograd through PyTorch's own convolution."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = F.conv3d(x, weight, bias, g.stride, g.padding, g.dilation, g.groups)
    grad = torch.randn_like(y)
    return y.detach(), grad, *torch.autograd.grad(y, (x, weight), grad)


def assert_near(got, expected, tolerance):
    """Sums of up to a few hundred products of numbers around 1."""
    torch.testing.assert_close(got, expected, rtol=0, atol=100 * tolerance)


@settings(max_examples=60)
@given(convolutions(), layouts, st.integers(0, 100))
def test_every_open_route_gives_the_result_of_the_library(convolution, layout, seed):
    g, samples, inputs, outputs, size = convolution
    torch.manual_seed(seed)
    # Double precision shows that the algebra is right, not only that errors are small. oneDNN
    # itself knows single precision only.
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        x = as_layout(torch.randn(samples, inputs, *size, dtype=dtype), layout)
        weight = torch.randn(outputs, inputs // g.groups, *g.kernel, dtype=dtype)
        bias = torch.randn(outputs, dtype=dtype)
        y, grad, by_x, by_weight = library_results(x, weight, bias, g)
        grad = as_layout(grad, layout)
        routes = available_routes(g, x, grad)
        for name in routes["forward"]:
            torch.testing.assert_close(
                FORWARD[name](x, weight, bias, g), y, rtol=0, atol=tolerance * 30
            )
        for name in routes["data"]:
            torch.testing.assert_close(
                DATA[name](grad, x, weight, g), by_x, rtol=0, atol=tolerance * 30
            )
        for name in routes["weight"]:
            assert_near(WEIGHT[name](grad, x, weight, g), by_weight, tolerance)


def test_padding_beyond_the_kernel_cannot_be_swapped():
    wide = Geometry((3, 3, 1), (1, 1, 1), (0, 3, 0), (1, 1, 1), 1)
    x, grad = torch.randn(1, 2, 4, 4, 4), torch.randn(1, 3, 2, 8, 4)
    routes = available_routes(wide, x, grad)
    assert "swapped" not in routes["weight"] and "onednn" not in routes["data"]


def test_all_ways_are_open_to_somebody():
    """Otherwise the property above proves less than it says."""
    x = as_layout(torch.randn(1, 2, 4, 4, 4), "channels-last")
    thin = Geometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1)
    pointwise = Geometry((1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1), 1)
    found = [available_routes(g, x, torch.randn(1, 3, 4, 4, 4)) for g in (thin, pointwise)]
    for part, ways in (("forward", FORWARD), ("data", DATA), ("weight", WEIGHT)):
        assert {name for routes in found for name in routes[part]} == set(ways)


def test_weight_gradients_may_differ_by_what_sums_over_voxels_round():
    rounding = torch.finfo(torch.float32).eps / 2
    assert sum_tolerance(torch.empty(1, 7, 8, 8, 8)) == TOLERANCE
    assert sum_tolerance(torch.empty(2, 7, 64, 64, 64)) == pytest.approx((2**19) ** 0.5 * rounding)
    torch.manual_seed(0)
    g = Geometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1)
    x, grad = (as_layout(torch.randn(1, c, 40, 40, 40), "channels-last") for c in (12, 3))
    weight = torch.empty(3, 12, 3, 3, 3)
    exact = grad.flatten(2)[0].double() @ x.flatten(2)[0].double().t()  # of the kernel's middle
    for way in available_routes(g, x, grad)["weight"]:
        found = WEIGHT[way](grad, x, weight, g)[..., 1, 1, 1]
        assert (found - exact).abs().max() <= sum_tolerance(grad) * exact.abs().max()


@pytest.mark.parametrize(
    ("register", "channels", "ways"),
    [
        # 7 of 16 numbers are used; of two voxels 14, and of three columns 21 of 32.
        (16, 7, ["padded", "paired", "summed"]),
        (8, 7, ["padded"]),  # 14 of 16 are no more than 7 of 8
        (16, 21, ["padded", "summed"]),  # 63 of 64 in the place of 21 of 32
        (16, 16, []),
        (8, 16, []),
    ],
)
def test_thin_outputs_fill_registers(register, channels, ways, monkeypatch):
    monkeypatch.setattr("ranp.speed.filling.vector_width", lambda: register)
    g = Geometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1)
    assert available_fillings(g, (1, channels, 6, 6, 6)) == ways
    # With an odd width the last voxel has no neighbour.
    assert "paired" not in available_fillings(g, (1, channels, 6, 6, 5))
    torch.manual_seed(0)
    x = as_layout(torch.randn(1, 5, 6, 6, 6), "channels-last")
    weight, bias = torch.randn(channels, 5, 3, 3, 3), torch.randn(channels)
    for way in ways:
        y = FILLING[way](x, weight, bias, g)
        assert layout_of(y) == "channels-last"
        torch.testing.assert_close(y, F.conv3d(x, weight, bias, padding=1), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "kernel", "reaches"),
    [
        ((1, 8, 48, 48, 48), 3, False),  # 8 x 48 x 48 = 18,432 rows
        ((1, 9, 48, 48, 48), 3, True),  # 20,736
        ((2, 8, 48, 48, 48), 3, True),
        ((1, 8, 48, 48, 48), 5, True),
    ],
)
def test_the_rule_is_that_of_pytorch(shape, kernel, reaches):
    """Which library PyTorch calls is seen in the profiler."""
    x, conv = torch.zeros(shape), nn.Conv3d(shape[1], 1, kernel, bias=False)
    with torch.profiler.profile() as seen, torch.no_grad():
        conv(x)
    names = {event.key for event in seen.key_averages()}
    assert ("aten::mkldnn_convolution" in names) == reaches
    assert Geometry.of(conv).reaches_onednn(*shape[:4]) == reaches


@pytest.mark.parametrize("shape", [(1, 1, 3, 4, 5), (2, 3, 4, 5, 6), (1, 4, 1, 1, 1)])
def test_layouts_go_there_and_back(shape):
    x = torch.randn(shape)
    last = as_layout(x, "channels-last")
    assert torch.equal(last, x) and last.is_contiguous(memory_format=torch.channels_last_3d)
    back = as_layout(last, "standard")
    assert torch.equal(back, x) and back.is_contiguous()
    odd = torch.randn(*shape, 2)[..., 0]
    for layout in ("standard", "channels-last"):
        assert torch.equal(as_layout(odd, layout), odd)


def routed(conv, route, *, is_last=False):
    twin = nn.Conv3d(conv.in_channels, conv.out_channels, conv.kernel_size, padding=conv.padding)
    twin.load_state_dict(conv.state_dict())
    how = {"route": route, "layout": "channels-last", "is_last": is_last}
    return rebuilt_as(RoutedConv3d, twin, **how)


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(
    ("kernel", "route"),
    [
        (1, Route("matmul", "matmul", "matmul")),
        (3, Route("onednn", "onednn", "onednn")),
        (3, Route("onednn", "onednn", "swapped")),
        (3, Route()),
    ],
)
def test_module_is_a_convolution_in_all_but_speed(kernel, route, is_last):
    torch.manual_seed(0)
    conv = nn.Conv3d(3, 5, kernel, padding=kernel // 2)
    twin = routed(conv, route, is_last=is_last)
    assert isinstance(twin, nn.Conv3d) and list(twin.state_dict()) == list(conv.state_dict())
    results = []
    for module in (conv, twin):
        torch.manual_seed(1)
        x = torch.randn(2, 3, 6, 6, 6, requires_grad=True)
        y = F.relu_(module(x))  # in place, as networks do
        y.square().sum().backward()
        results.append((y, x.grad, module.weight.grad, module.bias.grad))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)
    assert layout_of(twin(x)) == ("standard" if is_last else "channels-last")


def test_second_derivatives_are_those_of_the_convolution():
    torch.manual_seed(0)
    conv = nn.Conv3d(2, 3, 3, padding=1)
    found = []
    for module in (conv, routed(conv, Route("onednn", "onednn", "swapped"))):
        torch.manual_seed(1)
        x = torch.randn(1, 2, 4, 4, 4, requires_grad=True)
        (by_x,) = torch.autograd.grad(module(x).pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(by_x.square().sum(), module.weight)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-2)


def test_other_tensors_take_the_plain_way():
    conv = nn.Conv3d(2, 3, 3)
    twin = routed(conv, Route("matmul", "matmul", "matmul"))  # would be wrong for this kernel
    x = torch.randn(1, 2, 4, 4, 4)
    torch.testing.assert_close(twin.double()(x.double()), conv.double()(x.double()))
    with torch.autocast("cpu", torch.bfloat16):
        assert twin.float()(x).dtype == torch.bfloat16
    fake = torch.func.vmap(twin.float(), randomness="error")(x[None])
    torch.testing.assert_close(fake[0], conv.float()(x))


@pytest.mark.parametrize(
    "options",
    [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.1}],
)
def test_channels_last_batch_norm_is_batch_norm(options):
    torch.manual_seed(0)
    results = []
    for kind in (nn.BatchNorm3d, ChannelsLastBatchNorm3d):
        norm = kind(5, **options)
        torch.manual_seed(1)
        if norm.affine:
            nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
        for _ in range(2):
            x = as_layout(3 + torch.randn(2, 5, 4, 3, 6), "channels-last").requires_grad_()
            y = norm(x)
            F.relu_(y).pow(2).sum().backward()
        parameters = [p.grad for p in norm.parameters()]
        results.append([y, x.grad, *parameters, *norm.buffers()])
        results[-1].append(norm.eval()(x))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_channels_last_statistics_are_exact_where_pytorchs_are_not():
    torch.manual_seed(0)
    x = as_layout(0.7 * torch.randn(1, 8, 48, 48, 48) + 0.5, "channels-last")
    exact = x.double().mean((0, 2, 3, 4)), x.double().var((0, 2, 3, 4))
    norm = ChannelsLastBatchNorm3d(8, momentum=1.0)
    norm(x)
    for got, expected in zip((norm.running_mean, norm.running_var), exact, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=2e-7, atol=0)
