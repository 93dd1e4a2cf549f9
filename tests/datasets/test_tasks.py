from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ranp.datasets import find_dataset
from ranp.datasets.losses import dice_losses, overlap, sample_cross_entropy
from ranp.datasets.tasks import Classification, FunctionTask
from ranp.errors import UsageError


def drawn(classes: int = 5, size: int = 4, samples: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(samples, classes, size, size, size, generator=generator)
    target = torch.randint(0, classes, (samples, size, size, size), generator=generator)
    return output, target


def test_dice_loss_by_the_formula():
    output, target = drawn()
    probability = torch.softmax(output.double(), 1).numpy()
    terms = []
    for sample in range(3):
        for label in range(5):
            p, t = probability[sample, label], (target[sample] == label).numpy()
            terms.append(1 - 2 * p[t].sum() / (p.sum() + t.sum()))
    assert float(dice_losses(output, target).mean()) == pytest.approx(np.mean(terms), abs=1e-5)


@pytest.mark.slow
def test_dice_loss_is_monais():
    monai_losses = pytest.importorskip("monai.losses")
    output, target = drawn()
    target[target == 3] = 0  # a class without a voxel
    theirs = monai_losses.DiceLoss(softmax=True, to_onehot_y=True)(output, target[:, None])
    assert float(dice_losses(output, target).mean()) == pytest.approx(float(theirs), abs=1e-6)


def test_losses_of_a_batch_are_means_over_its_samples():
    output, target = drawn(samples=4)
    target[0, 0] = target[1, :3] = 255
    target[3] = 255
    whole = sample_cross_entropy(output, target, ignored=255)
    halves = [sample_cross_entropy(output[i : i + 2], target[i : i + 2], 255) for i in (0, 2)]
    assert float(whole) == pytest.approx(float(sum(halves)) / 2, abs=1e-6)
    one = F.cross_entropy(output[:1], target[:1], ignore_index=255)
    assert float(sample_cross_entropy(output[:1], target[:1], 255)) == pytest.approx(float(one))

    output, target = drawn(samples=4)
    for task in (
        find_dataset("brats").make_task(4),
        find_dataset("brats").configured({"loss": "authors"}).make_task(4),
        find_dataset("hippocampus").make_task(4),
        Classification(),
    ):
        y = target[:, 0, 0, 0] if isinstance(task, Classification) else target
        x = output[..., 0, 0, 0] if isinstance(task, Classification) else output
        whole = task.loss(x, {"y": y})
        halves = [task.loss(x[i : i + 2], {"y": y[i : i + 2]}) for i in (0, 2)]
        assert float(whole) == pytest.approx(float(sum(halves)) / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "training", "scoring"),
    [
        # All of five classes have p = 1/5 in 8 voxels; classes 0, 1, 2 and 4 are in two of them
        # each, so their Dice is 2 (2/5) / (8/5 + 2) = 2/9; that of class 3 is 0.
        ({}, math.log(5) + 0.25 * (4 * 7 / 9 + 1) / 5, math.log(5) + 0.25 * (4 * 7 / 9 + 1) / 5),
        (
            {"loss": "authors"},
            0.01 * math.log(5) + 0.25 * (3 * 7 / 9 + 1),
            math.log(5) + 0.25 * (3 * 7 / 9 + 1),
        ),
    ],
)
def test_losses_of_brats(options, training, scoring):
    task = find_dataset("brats").configured(options).make_task(2)
    batch = {"y": torch.tensor([0, 1, 2, 4, 4, 0, 2, 1]).reshape(1, 2, 2, 2)}
    output = torch.zeros(1, 5, 2, 2, 2)
    assert float(task.loss(output, batch)) == pytest.approx(training, abs=1e-5)
    assert float(task.scoring_loss(output, batch)) == pytest.approx(scoring, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("brats", {"loss": "dice"}, "loss must be one of printed, authors, got 'dice'"),
        ("ucf101", {"divisor": 0}, "divisor must be a number above 0, .* got 0"),
        ("ucf101", {"divider": 1}, "'ucf101' has no option 'divider'. Did you mean 'divisor'"),
        ("shapenet", {"loss": "authors"}, "'shapenet' has no option 'loss'. It has none"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(UsageError, match=message):
        find_dataset(name).configured(options)


def test_overlap_of_masks():
    one, other = torch.tensor([1, 1, 0, 0]).bool(), torch.tensor([0, 1, 1, 0]).bool()
    assert overlap(one, other) == (2 * 1 / (2 + 2), 1 / 3)
    assert overlap(one, torch.zeros(4).bool()) == (0.0, 0.0)
    assert overlap(torch.zeros(4).bool(), torch.zeros(4).bool()) == (1.0, 1.0)


def scores_for(labels: torch.Tensor, classes: int) -> torch.Tensor:
    return F.one_hot(labels, classes).movedim(-1, 1).float()


def test_brats_regions():
    truth = torch.tensor([0, 1, 2, 4, 4, 0, 2, 1]).reshape(1, 2, 2, 2)
    predicted = torch.tensor([0, 4, 2, 4, 1, 2, 2, 0]).reshape(1, 2, 2, 2)
    (case,) = find_dataset("brats").make_task(2).measure(scores_for(predicted, 5), {"y": truth})
    assert case["dice ET"] == pytest.approx(2 * 1 / (2 + 2))  # {4}
    assert case["iou ET"] == pytest.approx(1 / 3)
    assert case["dice TC"] == pytest.approx(2 * 3 / (3 + 4))  # {1, 4}
    assert case["iou TC"] == pytest.approx(3 / 4)
    assert case["dice WT"] == pytest.approx(2 * 5 / (6 + 6))  # {1, 2, 4}
    assert case["iou WT"] == pytest.approx(5 / 7)
    assert case["dice"] == pytest.approx((1 / 2 + 6 / 7 + 5 / 6) / 3)


def test_hippocampus_dice_per_class():
    truth = torch.tensor([0, 1, 1, 2, 2, 2, 0, 0]).reshape(1, 2, 2, 2)
    predicted = torch.tensor([0, 1, 0, 2, 2, 1, 0, 0]).reshape(1, 2, 2, 2)
    (case,) = (
        find_dataset("hippocampus").make_task(4).measure(scores_for(predicted, 3), {"y": truth})
    )
    assert case == {
        "dice": pytest.approx((2 / 4 + 4 / 5) / 2),
        "dice anterior": pytest.approx(2 * 1 / (2 + 2)),
        "dice posterior": pytest.approx(2 * 2 / (2 + 3)),
    }


def test_parts_choose_among_the_categorys_own():
    truth = torch.tensor([4, 5, 255, 4]).reshape(1, 1, 2, 2)  # Bag: handle 4, body 5
    scores = torch.zeros(1, 50, 1, 2, 2)
    scores[:, 0] = 9.0  # Airplane body, never to be chosen for a bag
    scores[0, 5, 0] = 1.0
    scores[0, 4, 0, 0, 0] = 2.0
    batch = {"y": truth, "category": ["Bag"]}
    task = find_dataset("shapenet").make_task(4)
    measures = task.measure(scores, batch)
    # Voxel 0 is handle and right, 1 is body and right, 3 is taken for body: (1/2 + 1/2) / 2.
    assert measures == [{"category": "Bag", "iou": pytest.approx(0.5)}]
    both = task.summarise([*measures, {"category": "Cap", "iou": 1.0}])
    assert both == {"miou": pytest.approx(0.75), "miou Bag": 0.5, "miou Cap": 1.0}


def test_classification_counts_the_first_and_the_first_five():
    output = torch.arange(7.0).repeat(3, 1)
    measures = Classification().measure(output, {"y": torch.tensor([6, 2, 1])})
    assert measures == [
        {"top1": 1.0, "top5": 1.0},
        {"top1": 0.0, "top5": 1.0},
        {"top1": 0.0, "top5": 0.0},
    ]
    assert Classification().summarise(measures) == {"top1": 1 / 3, "top5": 2 / 3}
    few = Classification().measure(torch.ones(1, 2), {"y": torch.tensor([1])})
    assert few[0]["top5"] == 1.0


def test_large_volumes_go_through_a_sliding_window(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "ranp.datasets.crops.predict_whole", lambda network, x, window: asked.append(window) or x
    )
    task, small, large = (
        find_dataset("brats").make_task(4),
        torch.zeros(1, 1, 4, 4, 4),
        torch.zeros(1, 1, 4, 4, 5),
    )
    task.predict(lambda x: x, small)
    assert asked == []
    task.predict(lambda x: x, large)
    assert asked == [4]


def test_a_task_of_two_functions():
    task = FunctionTask(
        lambda output, batch: (output - batch["y"]).square().mean(),
        lambda output, batch: [{"error": float(v)} for v in (output - batch["y"]).abs()],
        goal="error",
    )
    batch = {"y": torch.tensor([1.0, 2.0])}
    assert float(task.loss(torch.zeros(2), batch)) == 2.5
    assert task.summarise(task.measure(torch.zeros(2), batch)) == {"error": 1.5}


def test_means_are_over_the_cases_that_have_a_measure():
    assert Classification().summarise([{"a": 1.0, "name": "x"}, {"a": 2.0}]) == {"a": 1.5}
