"""Samples that are scored one by one: the paper's batches of one, whatever the loader yields."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from ranp.errors import UsageError
from tests.pruning.nets import (
    classifier,
    cross_entropy,
    given_back,
    pictures,
    score,
    serving,
    traced,
)


def samples_of(batch):
    x, y = batch
    return [(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]


def weight_normed():
    torch.manual_seed(0)
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(
        norm(nn.Conv2d(2, 6, 3)), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    ).double()


@pytest.mark.parametrize(
    "model",
    [classifier(), classifier(norm=True), weight_normed()],
    ids=["plain", "batch norm", "weight norm"],
)
@pytest.mark.parametrize("size", [2, 3])
def test_the_same_as_batches_of_one(model, size):
    graph = traced(model, 1, 2, 8, 8)
    data = pictures(2, size)
    options = {"methods": serving("abs", "signed"), "weights": "given"}
    with given_back(model):
        found = score(model, graph, data, cross_entropy, per="sample", **options)
    single = [sample for batch in data for sample in samples_of(batch)]
    expected = score(model, graph, single, cross_entropy, **options)
    assert (found.batches, expected.batches) == (2, 2 * size)
    for statistic in expected.sums:
        for layer, values in expected.average(statistic).items():
            torch.testing.assert_close(found.average(statistic)[layer], values)
    for statistic in expected.weight_sums:
        for layer, averages in expected.weight_averages(statistic).items():
            torch.testing.assert_close(found.weight_averages(statistic)[layer], averages)


def test_every_batch_counts_the_same_and_its_samples_share_it():
    """As the mean over a batch does for its loss, where the last batch of a loader is smaller."""
    model = classifier()
    graph = traced(model, 1, 2, 8, 8)
    large, small = pictures(1, 4)[0], tuple(t[:1] for t in pictures(2, 4)[1])

    def magnitudes(batch, per="batch"):
        return score(model, graph, [batch], cross_entropy, weights="given", per=per).sums["mpmg"]

    both = score(model, graph, [large, small], cross_entropy, weights="given", per="sample")
    for layer, found in both.sums["mpmg"].items():
        by_hand = sum(magnitudes(sample)[layer] for sample in samples_of(large)) / 4
        torch.testing.assert_close(found, by_hand + magnitudes(small)[layer])
        whole = magnitudes(large)[layer]  # |mean| <= mean of ||
        assert (magnitudes(large, "sample")[layer] >= whole - 1e-12).all()
        assert (magnitudes(large, "sample")[layer] > 1.01 * whole).any()


def test_grasp_is_that_of_the_batch():
    """Its Hessian belongs to the batch's loss; there is no magnitude to take."""
    model = classifier()
    graph = traced(model, 1, 2, 8, 8)
    options = {"methods": serving("grasp"), "weights": "given"}
    found, whole = (
        score(model, graph, pictures(2, 3), cross_entropy, per=per, **options).sums["grasp"]
        for per in ("sample", "batch")
    )
    for layer, values in whole.items():
        torch.testing.assert_close(found[layer], values)


def test_scores_of_both_kinds_do_not_add_up():
    model = classifier()
    graph = traced(model, 1, 2, 8, 8)
    one, other = (
        score(model, graph, pictures(1, 2), cross_entropy, per=p) for p in ("batch", "sample")
    )
    with pytest.raises(UsageError, match=r"they differ in 'per' \(batch and sample\)"):
        one + other


def test_an_unknown_kind_is_refused():
    model = classifier()
    with pytest.raises(UsageError, match="per must be one of 'batch', 'sample', got 'voxel'"):
        score(model, traced(model, 1, 2, 8, 8), pictures(1, 2), cross_entropy, per="voxel")


@dataclass
class Opaque:
    x: torch.Tensor
    y: torch.Tensor


@pytest.mark.parametrize("wrap", [Opaque, lambda x, y: UserDict(x=x, y=y)])
def test_a_batch_whose_samples_cannot_be_seen_is_refused(wrap):
    model = classifier()
    graph = traced(model, 1, 2, 8, 8)

    def forward(model, batch):
        x, y = (batch["x"], batch["y"]) if isinstance(batch, UserDict) else (batch.x, batch.y)
        return nn.functional.cross_entropy(model(x), y)

    data = [wrap(*batch) for batch in pictures(1, 2)]
    assert score(model, graph, data, forward).batches == 1
    with pytest.raises(UsageError, match=r"cannot take a (Opaque|UserDict) apart into samples"):
        score(model, graph, data, forward, per="sample")


def test_the_input_says_how_many_samples_there_are():
    """Not the first tensor: that may be something else that all samples share."""
    model = classifier()
    graph = traced(model, 1, 2, 8, 8)

    def forward(model, batch):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"], batch["class_weights"])

    weights = torch.tensor([1.0, 2.0, 4.0]).double()
    x, y = pictures(1, 4)[0]
    together = [{"class_weights": weights, "x": x, "y": y}]
    alone = [{"class_weights": weights, "x": x[i : i + 1], "y": y[i : i + 1]} for i in range(4)]
    found = score(model, graph, together, forward, per="sample", weights="given")
    expected = score(model, graph, alone, forward, weights="given")
    for layer, values in expected.average("mpmg").items():
        torch.testing.assert_close(found.average("mpmg")[layer], values)
