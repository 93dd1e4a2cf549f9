"""Outputs that are known without running an operation are those that running it gives."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ranp.graph.known_outputs import known_output

ATEN = torch.ops.aten
SHAPE = (2, 6, 4, 3, 5)


def described(outputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [t if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in outputs]


def calls():
    x, grad = torch.randn(SHAPE), torch.randn(SHAPE)
    channels = [torch.randn(SHAPE[1]) for _ in range(6)]
    weight, bias, mean, variance, saved, inverse = channels
    norm, backward = ATEN.native_batch_norm.default, ATEN.native_batch_norm_backward.default
    layer, layer_backward = ATEN.native_layer_norm.default, ATEN.native_layer_norm_backward.default
    last, means = torch.randn(SHAPE[-2:]), torch.randn(*SHAPE[:-2], 1, 1)
    every, only = [True, True, True], [True, False, False]
    training = (True, 0.1, 1e-5)
    return {
        "batch norm": (norm, (x, weight, bias, mean, variance, *training)),
        "without statistics": (norm, (x, weight, bias, None, None, *training)),
        "without weights": (norm, (x, None, None, mean, variance, *training)),
        "mixed dtypes": (norm, (x.bfloat16(), weight, bias, mean, variance, *training)),
        "its gradient": (
            backward,
            (grad, x, weight, mean, variance, saved, inverse, True, 1e-5, every),
        ),
        "of mixed dtypes": (
            backward,
            (grad.half(), x.half(), weight, None, None, saved, inverse, True, 1e-5, every),
        ),
        "of no weights": (
            backward,
            (grad, x, None, None, None, saved, inverse, True, 1e-5, only),
        ),
        "layer norm": (layer, (x, SHAPE[-2:], last, last, 1e-5)),
        "layer norm without weights": (layer, (x, SHAPE[-1:], None, None, 1e-5)),
        "gradient of layer norm": (
            layer_backward,
            (grad, x, SHAPE[-2:], means, means, last, last, every),
        ),
        "gradient of layer norm without weights": (
            layer_backward,
            (grad, x, SHAPE[-2:], means, means, None, None, only),
        ),
        "leaky relu": (ATEN.leaky_relu_backward.default, (grad, x, 0.01, False)),
        "relu": (ATEN.threshold_backward.default, (grad, x, 0)),
        "gelu": (ATEN.gelu_backward.default, (grad, x)),
        "tanh": (ATEN.tanh_backward.default, (grad, x)),
        "forward of gelu": (ATEN.gelu.default, (x,)),
        "slice": (ATEN.slice_backward.default, (grad, (2, 9, *SHAPE[2:]), 1, 0, 6, 1)),
        "select": (ATEN.select_backward.default, (grad, (2, 3, *SHAPE[1:]), 1, 0)),
        "sum": (ATEN.add.Tensor, (x, grad)),
        "product with a number": (ATEN.mul.Tensor, (x.bfloat16(), 2.5)),
        "padding": (ATEN.constant_pad_nd.default, (x, [1, 0, 2, 3], 0.5)),
        "padding of every dimension": (ATEN.constant_pad_nd.default, (weight, [0, 4])),
        "repeat": (ATEN.repeat.default, (weight, [3])),
        "product": (ATEN.addmm.default, (torch.randn(5), torch.randn(4, 6), torch.randn(5, 6).t())),
    }


@pytest.mark.parametrize("name", calls())
def test_known_outputs_are_those_of_the_operation(name):
    with FakeTensorMode():
        func, args = calls()[name]
        known = known_output(func, args, {})
        assert described(known) == described(func(*args))


@pytest.mark.parametrize(
    "change",
    [
        lambda args: (args[0].transpose(1, 2), *args[1:]),
        lambda args: (args[0], torch.randn(5), *args[2:]),
        lambda args: (*args[:5], False, *args[6:]),
    ],
    ids=["strides", "another width", "evaluation"],
)
def test_what_is_out_of_the_ordinary_is_left_to_the_operation(change):
    with FakeTensorMode():
        func, args = calls()["batch norm"]
        assert known_output(func, change(args), {}) is None


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (ATEN.add.Tensor, ((2, 3), (3,))),  # broadcast
        (ATEN.add.Tensor, ((2, 3), (2, 3), torch.float64)),
        (ATEN.add.Tensor, ((2, 3), 1j)),
        (ATEN.constant_pad_nd.default, ((2, 3), [-1, 0])),
        (ATEN.constant_pad_nd.default, ((2, 3), [1, 0, 1, 0, 1, 0])),
    ],
)
def test_sums_and_paddings_out_of_the_ordinary_are_left_to_the_operation(func, args):
    (shape, other, *dtype) = args
    with FakeTensorMode():
        other = torch.randn(other, dtype=(dtype or [None])[0]) if type(other) is tuple else other
        assert known_output(func, (torch.randn(shape), other), {}) is None


def test_operations_without_a_rule_and_real_tensors_are_run():
    x = torch.randn(SHAPE)
    assert known_output(ATEN.tanh_backward.default, (x, x), {}) is None
    with FakeTensorMode():
        x = torch.randn(SHAPE)
        assert known_output(ATEN.sum.default, (x,), {}) is None


def test_a_tensor_that_is_copied_into_is_the_output():
    copy = ATEN.copy_.default
    with FakeTensorMode():
        x = torch.randn(SHAPE)
        assert known_output(copy, (x, torch.randn(SHAPE)), {}) is x
        assert known_output(copy, (x, torch.randn(SHAPE[-1])), {}) is None  # it is broadcast
        assert known_output(ATEN.relu_.default, (x,), {}) is x


def test_products_and_repeats_that_do_not_fit_are_left_to_the_operation():
    with FakeTensorMode():
        bias, left = torch.randn(5), torch.randn(4, 6)
        assert known_output(ATEN.addmm.default, (bias, left, torch.randn(5, 5)), {}) is None
        assert known_output(ATEN.addmm.default, (bias[:1], left, torch.randn(6, 5)), {}) is None
        assert known_output(ATEN.repeat.default, (bias, [2, 3]), {}) is None
