"""Fake tensors that are made directly are those that their dispatcher makes."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ranp.graph.fake_tensors import device_of, fake_empty, view_of

ATEN = torch.ops.aten
SHAPE = (2, 6, 4, 3, 5)

VIEWS = {
    "view": (ATEN.view.default, [1, 12, 60]),
    "view with a size to infer": (ATEN.view.default, [-1, 60]),
    "of another dtype": (ATEN.view.dtype, torch.int32),
    "view below autograd": (ATEN._unsafe_view.default, [12, 60]),
    "expand": (ATEN.expand.default, [3, *SHAPE]),
    "slice": (ATEN.slice.Tensor, 1, 2, 5),
    "select": (ATEN.select.int, 1, 3),
    "permute": (ATEN.permute.default, [0, 2, 3, 4, 1]),
    "transpose": (ATEN.transpose.int, 1, 4),
    "unsqueeze": (ATEN.unsqueeze.default, 0),
    "detach": (ATEN.detach.default,),
    "split": (ATEN.split.Tensor, 4, 1),
    "unbind": (ATEN.unbind.int, 1),
}


def described(outputs):
    assert all(isinstance(t, FakeTensor) for t in outputs)
    return [
        (t.shape, t.stride(), t.storage_offset(), t.dtype, t.device, t.requires_grad)
        for t in outputs
    ]


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_those_of_the_operation(name):
    func, *args = VIEWS[name]
    with FakeTensorMode():
        x = torch.randn(SHAPE)
        view, usual = view_of(func, (x, *args), {}), func(x, *args)
        assert type(view) is type(usual)
        views, usuals = (v if isinstance(v, (list, tuple)) else [v] for v in (view, usual))
        assert described(views) == described(usuals)
        storage = x.untyped_storage()._cdata
        assert all(t.untyped_storage()._cdata == storage for t in views)


def test_a_view_that_does_not_fit_is_refused():
    with FakeTensorMode(), pytest.raises(RuntimeError, match="invalid for input of size"):
        view_of(ATEN.view.default, (torch.randn(SHAPE), [7, 7]), {})


def test_what_may_copy_or_has_values_is_left_to_the_dispatcher():
    assert view_of(ATEN.view.default, (torch.randn(4), [2, 2]), {}) is None
    with FakeTensorMode():
        x = torch.randn(SHAPE)
        assert view_of(ATEN.reshape.default, (x, [-1]), {}) is None
        assert view_of(ATEN.to.dtype, (x, torch.float64), {}) is None
        assert view_of(ATEN.add.Tensor, (x, x), {}) is None
        assert view_of(ATEN.relu_.default, (x,), {}) is None
        constant = torch.tensor(1.0)
        assert view_of(ATEN.view.default, (constant, [1, 1]), {}) is None


def test_an_empty_tensor_is_what_torch_gives():
    with FakeTensorMode() as mode:
        made = fake_empty(mode, (2, 3), torch.float16)
        usual = torch.empty((2, 3), dtype=torch.float16)
        assert described([made]) == described([usual])
        assert made.untyped_storage().nbytes() == usual.untyped_storage().nbytes() == 12


def test_the_device_is_that_of_the_fake_tensor():
    device = torch.ops.prim.device.default
    assert device_of(device, (torch.randn(2),)) is None
    with FakeTensorMode():
        x = torch.randn(2)
        assert device_of(device, (x,)) == torch.device("cpu")
        assert device_of(ATEN.relu.default, (x,)) is None
