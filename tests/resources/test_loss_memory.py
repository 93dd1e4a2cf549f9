"""The loss in the memory of a training step: values that do not depend on data are known."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ranp.errors import TraceError
from ranp.resources import predict_training_memory
from ranp.resources.training_memory import LOSS_MARGIN, LossNotCounted
from tests.resources.allocator import step_peak

CLASSES, EDGE = 5, 12
SHAPE = (2, 1, EDGE, EDGE, EDGE)
LABELS = torch.arange(2 * EDGE**3).reshape(SHAPE) % CLASSES


class Supervised(nn.Module):
    """A head of many classes, so that the loss holds the peak; two scales in train mode."""

    def __init__(self, deep: bool = False) -> None:
        super().__init__()
        self.deep = deep
        self.body = nn.Conv3d(1, 2, 3, padding=1)
        self.head = nn.Conv3d(2, CLASSES, 1)

    def forward(self, x):
        output = self.head(F.relu(self.body(x)))
        return [output, F.max_pool3d(output, 2)] if self.deep else output


def monai_losses():
    from monai import losses

    options = {"to_onehot_y": True, "softmax": True}
    return {
        "dice": losses.DiceLoss(**options),
        "dice-foreground": losses.DiceLoss(include_background=False, batch=True, **options),
        "dice-ce": losses.DiceCELoss(**options),
        "dice-ce-weighted": losses.DiceCELoss(weight=torch.ones(CLASSES), **options),
        "dice-focal": losses.DiceFocalLoss(**options),
        "generalized-dice": losses.GeneralizedDiceLoss(**options),
        "tversky": losses.TverskyLoss(**options),
        "focal": losses.FocalLoss(to_onehot_y=True, use_softmax=True),
    }


def soft_dice(output, target):
    """As nnU-Net has it: one-hot by scatter, sums over space, then cross-entropy."""
    onehot = torch.zeros(output.shape, dtype=torch.bool).scatter_(1, target.long(), 1)
    soft = output.softmax(1)
    axes = [0, *range(2, output.dim())]
    with torch.no_grad():
        size = onehot.sum(axes)
    dice = (2 * (soft * onehot).sum(axes) + 1) / (size + soft.sum(axes) + 1).clip(1e-8)
    return F.cross_entropy(output, target[:, 0].long()) - dice.mean()


TORCH_LOSSES = {
    "cross-entropy": lambda o, y: F.cross_entropy(o, y[:, 0]),
    "soft-dice": soft_dice,
    "bce": lambda o, y: F.binary_cross_entropy_with_logits(o, y.float().expand_as(o)),
    "mse": lambda o, y: F.mse_loss(o, y.float() + 0 * o.detach()),
    "smooth-l1": lambda o, y: F.smooth_l1_loss(o, y.float() + 0 * o.detach()),
    "one-hot": lambda o, y: (o * F.one_hot(y[:, 0]).movedim(-1, 1)).mean(),
}


def compare(loss, *, deep=False):
    """Predicted against measured peak; whatever cannot be followed is a warning, so an error."""
    model = Supervised(deep).train()
    x = torch.randn(SHAPE)

    def forward(model, batch):
        return loss(model(batch["image"]), batch["label"])

    with warnings.catch_warnings():
        warnings.simplefilter("error", LossNotCounted)
        predicted = predict_training_memory(
            model, {"image": x, "label": LABELS}, optimizer="sgd", forward=forward, device="cpu"
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    measured = step_peak(model, x, optimizer, lambda output: loss(output, LABELS))
    assert predicted.loss_margin == 0
    assert predicted.peak == pytest.approx(measured + LABELS.nbytes, rel=0.01)


@pytest.mark.parametrize("name", TORCH_LOSSES)
def test_the_peak_with_a_loss_of_torch_is_the_allocators(name, one_thread):
    compare(TORCH_LOSSES[name])


@pytest.mark.parametrize("name", monai_losses())
def test_the_peak_with_a_loss_of_monai_is_the_allocators(name, one_thread):
    loss = monai_losses()[name]
    compare(lambda o, y: loss(o, y.float()))


def nnunet_loss():
    from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
    from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
    from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss

    dice = {"batch_dice": True, "smooth": 1e-5, "do_bg": False, "ddp": False}
    loss = DC_and_CE_loss(dice, {}, dice_class=MemoryEfficientSoftDiceLoss)
    wrapped = DeepSupervisionWrapper(loss, [0.75, 0.25])
    return lambda outputs, y: wrapped(outputs, [y, y[..., ::2, ::2, ::2]])


def supervised(name):
    """A loss over several scales: one of MONAI's, or nnU-Net's own."""
    from monai.losses import DeepSupervisionLoss

    return nnunet_loss() if name == "nnU-Net" else DeepSupervisionLoss(monai_losses()[name])


@pytest.mark.parametrize("name", [*monai_losses(), "nnU-Net"])
def test_the_peak_with_a_loss_over_several_scales_is_the_allocators(name, one_thread):
    loss = supervised(name)
    compare(lambda o, y: loss(o, y.float()), deep=True)


def test_values_that_do_not_depend_on_data_are_computed():
    seen = {}

    def loss(output):
        index = torch.arange(1, 4)
        index[1:] += torch.tensor([10, 20])
        seen["list"] = index.tolist()
        seen["any"] = bool((index > 20).any())
        seen["weight"] = float(weight.sum())
        seen["places"] = tuple(torch.ones_like(output).sum(dtype=torch.int64).reshape(1).tolist())
        return output.mean()

    weight = torch.tensor([0.25, 0.5])
    predict_training_memory(Supervised(), SHAPE, loss=loss)
    assert seen == {
        "list": [1, 12, 23],
        "any": True,
        "weight": 0.75,
        "places": (2 * CLASSES * EDGE**3,),
    }
    assert weight.tolist() == [0.25, 0.5]


def test_the_values_of_a_batch_are_known():
    seen = []

    def forward(model, batch):
        x, y = batch
        seen.append(int(y.max()))
        foreground = (y > 2).nonzero()
        seen.append(foreground.shape[0])
        return model(x).mean()

    predict_training_memory(Supervised(), (torch.zeros(SHAPE), LABELS), forward=forward)
    assert seen == [CLASSES - 1, int((LABELS > 2).sum())]


def test_what_data_has_changed_is_not_known():
    def loss(output):
        counts = torch.zeros(CLASSES)
        counts += output.sum((0, 2, 3, 4))
        return output.mean() * float(counts.sum())

    line = r"the loss needs the values of tensors \(test_loss_memory.py:\d+\)\): a margin of 8"
    with pytest.warns(LossNotCounted, match=line):
        predict_training_memory(Supervised(), SHAPE, loss=loss)


@pytest.mark.parametrize(
    "loss",
    [
        lambda output: output.mean() if output.mean().item() > 0 else output.sum(),
        lambda output: output.mean() * float(output.detach().numpy().mean()),
        lambda output: output[output > 0].mean(),
    ],
    ids=["item", "numpy", "mask"],
)
def test_a_loss_that_cannot_be_followed_has_a_margin(loss):
    plain = predict_training_memory(Supervised(), SHAPE)
    with pytest.warns(LossNotCounted) as caught:
        memory = predict_training_memory(Supervised(), SHAPE, loss=loss)
    outputs = 4 * CLASSES * 2 * EDGE**3
    assert memory.loss_margin == LOSS_MARGIN * outputs
    assert memory.peak == plain.peak + memory.loss_margin
    assert f"a margin of {LOSS_MARGIN} times the outputs" in str(caught[0].message)


def test_a_loss_that_fails_is_named_without_exceptions_of_torch():
    def loss(output):
        return F.cross_entropy(output, torch.zeros(2, EDGE, dtype=torch.int64))

    with pytest.raises(TraceError, match="the training step fails in the loss: RuntimeError"):
        predict_training_memory(Supervised(), SHAPE, loss=loss)


def test_a_model_that_decides_by_values_is_named():
    class Deciding(Supervised):
        def forward(self, x):
            return self.head(self.body(x)) if x.sum() > 0 else self.body(x)

    with pytest.raises(TraceError, match=re.escape("needs the values of tensors")):
        predict_training_memory(Deciding(), SHAPE)
