from __future__ import annotations

import numpy as np
import pytest

from ranp.datasets.parts import CATEGORIES, PARTS, category_named, part_miou, shape_iou
from ranp.datasets.voxels import EMPTY
from ranp.errors import UsageError


def one_hot(labels):
    return (np.arange(PARTS)[:, None] == np.asarray(labels)[None]).astype(float)


def test_official_numbering():
    ranges = {c.name: (c.labels[0], c.labels[-1]) for c in CATEGORIES}
    assert PARTS == 50
    assert ranges == {
        "Airplane": (0, 3),
        "Bag": (4, 5),
        "Cap": (6, 7),
        "Car": (8, 11),
        "Chair": (12, 15),
        "Earphone": (16, 18),
        "Guitar": (19, 21),
        "Knife": (22, 23),
        "Lamp": (24, 27),
        "Laptop": (28, 29),
        "Motorbike": (30, 35),
        "Mug": (36, 37),
        "Pistol": (38, 40),
        "Rocket": (41, 43),
        "Skateboard": (44, 46),
        "Table": (47, 49),
    }


def test_unknown_category_suggests():
    with pytest.raises(UsageError, match="Did you mean 'Chair'"):
        category_named("Chiar")


def test_shape_iou_by_hand():
    bag = category_named("Bag")
    truth = np.array([4, 4, 4, 5, EMPTY])
    predicted = one_hot([4, 5, 5, 5, 4])
    # Handle: 1 of 3 voxels found, none too many. Body: 1 of 3 voxels said to be body is one.
    assert shape_iou(predicted, truth, bag) == pytest.approx((1 / 3 + 1 / 3) / 2)


def test_only_the_category_s_own_parts_compete():
    scores = one_hot([4, 5])
    scores[20] = 100.0  # a guitar's neck, whatever its score, is no part of a bag
    assert shape_iou(scores, np.array([4, 5]), category_named("Bag")) == 1.0


def test_a_part_that_neither_occurs_nor_is_predicted_counts_one():
    chair = category_named("Chair")
    assert shape_iou(one_hot([12, 13, 14]), np.array([12, 13, 14]), chair) == 1.0
    assert shape_iou(one_hot([12, 13, 15]), np.array([12, 13, 14]), chair) == 0.5


def test_mean_over_categories_is_weighted_by_their_shapes():
    result = part_miou([0.2, 0.4, 0.9], ["Bag", "Bag", "Cap"])
    overall = (2 * 0.3 + 0.9) / 3
    assert result == pytest.approx({"miou": overall, "miou Bag": 0.3, "miou Cap": 0.9})
