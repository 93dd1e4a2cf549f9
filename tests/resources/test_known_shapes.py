"""Outputs that are known without running an operation are those that running it gives."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ranp.resources.known_shapes import known_outputs

ATEN = torch.ops.aten
SHAPE = (2, 6, 4, 3, 5)


def described(outputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [(t.shape, t.stride(), t.dtype, t.device) for t in outputs]


def calls():
    x, grad = torch.randn(SHAPE), torch.randn(SHAPE)
    channels = [torch.randn(SHAPE[1]) for _ in range(6)]
    weight, bias, mean, variance, saved, inverse = channels
    backward = ATEN.native_batch_norm_backward.default
    return {
        "batch norm": (
            ATEN.native_batch_norm.default,
            (x, weight, bias, mean, variance, True, 0.1, 1e-5),
        ),
        "without statistics": (
            ATEN.native_batch_norm.default,
            (x, weight, bias, None, None, True, 0.1, 1e-5),
        ),
        "its gradient": (
            backward,
            (grad, x, weight, mean, variance, saved, inverse, True, 1e-5, [True, True, True]),
        ),
        "leaky relu": (ATEN.leaky_relu_backward.default, (grad, x, 0.01, False)),
        "relu": (ATEN.threshold_backward.default, (grad, x, 0)),
        "gelu": (ATEN.gelu_backward.default, (grad, x)),
        "tanh": (ATEN.tanh_backward.default, (grad, x)),
    }


@pytest.mark.parametrize("name", calls())
def test_known_outputs_are_those_of_the_operation(name):
    with FakeTensorMode():
        func, args = calls()[name]
        known = known_outputs(func, args, {})
        assert described(known) == described(func(*args))


@pytest.mark.parametrize(
    "change",
    [
        lambda args: (args[0].transpose(1, 2), *args[1:]),
        lambda args: (args[0].bfloat16(), *args[1:]),
        lambda args: (args[0], torch.randn(5), *args[2:]),
        lambda args: (args[0], None, None, *args[3:]),
        lambda args: (*args[:5], False, *args[6:]),
    ],
    ids=["strides", "mixed dtypes", "another width", "no weight", "evaluation"],
)
def test_what_is_out_of_the_ordinary_is_left_to_the_operation(change):
    with FakeTensorMode():
        func, args = calls()["batch norm"]
        assert known_outputs(func, change(args), {}) is None


def test_operations_without_a_rule_and_real_tensors_are_run():
    x = torch.randn(SHAPE)
    assert known_outputs(ATEN.tanh_backward.default, (x, x), {}) is None
    with FakeTensorMode():
        x = torch.randn(SHAPE)
        assert known_outputs(ATEN.sum.default, (x,), {}) is None
