"""Losses of the tasks.

Each is a mean over samples of something that depends on one sample alone. So a batch split over
processes, or over accumulated passes, gives the loss of the whole batch. They are functions of
logits `output` [N, C, ...] and labels `target` [N, ...].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_SMOOTH = 1e-5  # as MONAI's DiceLoss


def dice_losses(output: Tensor, target: Tensor) -> Tensor:
    r"""Return :math:`1 - 2 \sum p t / (\sum p + \sum t)` of every sample and class, [N, C].

    Its mean is MONAI's `DiceLoss(softmax=True, to_onehot_y=True)`, which the tests compare it with;
    written out because importing MONAI takes longer than a short training run.
    """
    probability = output.softmax(1)
    truth = F.one_hot(target, output.shape[1]).movedim(-1, 1).to(probability.dtype)
    space = tuple(range(2, output.dim()))
    overlap = (probability * truth).sum(space)
    total = probability.sum(space) + truth.sum(space)
    return 1 - (2 * overlap + _SMOOTH) / (total + _SMOOTH)


def sample_cross_entropy(output: Tensor, target: Tensor, ignored: int) -> Tensor:
    """Return the cross-entropy over each sample's voxels but `ignored` ones, then over samples."""
    losses = F.cross_entropy(output, target, ignore_index=ignored, reduction="none").flatten(1)
    labelled = (target != ignored).flatten(1).sum(1).clamp(min=1)
    result: Tensor = (losses.sum(1) / labelled).mean()
    return result


def cross_entropy_and_dice(output: Tensor, target: Tensor, weight: float) -> Tensor:
    """Return cross-entropy plus a weight times the mean Dice loss, in single precision."""
    output = output.float()
    result: Tensor = F.cross_entropy(output, target) + weight * dice_losses(output, target).mean()
    return result


def cross_entropy_and_foreground_dice(
    output: Tensor, target: Tensor, weight: float, cross_entropy: float
) -> Tensor:
    """Return cross-entropy and the sum of the Dice losses of all labels but 0, both weighted."""
    output = output.float()
    dice = dice_losses(output, target)[:, 1:].sum(1).mean()
    result: Tensor = cross_entropy * F.cross_entropy(output, target) + weight * dice
    return result


def overlap(predicted: Tensor, truth: Tensor) -> tuple[float, float]:
    """Return Dice and IoU of two masks; 1 where both are empty."""
    both = int(torch.count_nonzero(predicted & truth))
    total = int(torch.count_nonzero(predicted)) + int(torch.count_nonzero(truth))
    if total == 0:
        return 1.0, 1.0
    return 2 * both / total, both / (total - both)
