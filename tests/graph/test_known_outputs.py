"""Outputs that are known without running a convolution are those that running it gives."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from ranp.graph.known_outputs import known_output

CONVOLUTION = torch.ops.aten.convolution.default


def known(*args):
    return known_output(CONVOLUTION, args, {})


def described(tensor):
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    ("channels", "groups"), [((1, 4), 1), ((6, 1), 1), ((6, 4), 2), ((6, 6), 6)]
)
def test_known_convolutions_are_those_of_the_operation(transposed, dims, channels, groups):
    reads, gives = channels
    rows, columns = (reads, gives // groups) if transposed else (gives, reads // groups)
    extras = (0, 1) if transposed else (0,)  # others have no output padding
    cases = product((1, 7), (1, 3), (1, 2), (0, 1), (1, 2), (True, False), extras)
    compared = 0
    with FakeTensorMode():
        for size, kernel, stride, padding, dilation, biased, extra in cases:
            x = torch.randn(2, reads, *[size] * dims)
            weight = torch.randn(rows, columns, *[kernel] * dims)
            bias = torch.randn(gives) if biased else None
            settings = [[each] * dims for each in (stride, padding, dilation)]
            args = (x, weight, bias, *settings, transposed, [extra] * dims, groups)
            found = known(*args)
            if found is not None:  # else the kernel is larger than the input, or the like
                assert described(found) == described(CONVOLUTION(*args))
                compared += 1
    assert compared > 32 * len(extras)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_known_convolutions_are_those_that_real_tensors_give(dtype):
    x, weight = torch.randn(2, 4, 9, 8, 7, dtype=dtype), torch.randn(6, 2, 3, 3, 3, dtype=dtype)
    settings = ([2, 1, 3], [1, 0, 2], [1, 2, 1])
    real = F.conv3d(x, weight, None, *settings, groups=2)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in (x, weight)]
        found = known(*fakes, None, *settings, False, [0, 0, 0], 2)
        assert described(found) == described(real)


SETTINGS = ([1] * 3, [1] * 3, [1] * 3, False, [0] * 3)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "groups"),
    [
        ((1, 5, 4, 4, 4), (6, 4, 3, 3, 3), None, 1),  # other channels
        ((1, 4, 4, 4, 4), (5, 2, 3, 3, 3), None, 2),  # groups that do not divide them
        ((1, 4, 4, 4, 4), (6, 4, 3, 3, 3), (5,), 1),  # another bias
        ((4, 4, 4, 4), (6, 4, 3, 3, 3), None, 1),  # no batch
        ((1, 4, 4, 4, 4), (6, 4, 7, 7, 7), None, 1),  # a kernel larger than the volume
    ],
)
def test_what_does_not_fit_is_left_to_the_operation(x, weight, bias, groups):
    with FakeTensorMode():
        bias = None if bias is None else torch.randn(bias)
        assert known(torch.randn(x), torch.randn(weight), bias, *SETTINGS, groups) is None


def test_other_memory_formats_dtypes_and_devices_are_left_to_the_operation():
    with FakeTensorMode():
        x, weight = torch.randn(1, 4, 4, 4, 4), torch.randn(6, 4, 3, 3, 3)
        last = torch.channels_last_3d
        assert known(x, weight, None, *SETTINGS, 1) is not None
        assert known(x.to(memory_format=last), weight, None, *SETTINGS, 1) is None
        assert known(x, weight.to(memory_format=last), None, *SETTINGS, 1) is None
        assert known(x, weight.bfloat16(), None, *SETTINGS, 1) is None
        assert known(x, weight.to("meta"), None, *SETTINGS, 1) is None
