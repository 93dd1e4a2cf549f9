"""Scores: saved and loaded, added up, refused when damaged."""

from __future__ import annotations

import random

import pytest
import torch

from ranp.errors import IntegrityError, RanpError, UsageError
from ranp.files import save_tensors
from ranp.pruning import METHODS, Choice, Chooser, Scores, StabilityStop
from tests.pruning.nets import classifier, cross_entropy, pictures, score, serving, traced

STATISTICS = ("abs", "signed", "grasp", "synflow")


def scored(data, **options):
    model = classifier()
    options = {"methods": serving(*STATISTICS), "weights": "given", **options}
    return score(model, traced(model, 1, 2, 8, 8), data, cross_entropy, **options)


@pytest.fixture(scope="module")
def whole():
    return scored(pictures(4))


def assert_equal(a, b, *, tolerance=0.0):
    assert (a.batches, a.fingerprint) == (b.batches, b.fingerprint)
    assert list(a.fan_in.items()) == list(b.fan_in.items())
    assert dict(a.settings) == dict(b.settings)
    for group in ("sums", "weight_sums", "constants"):
        one, other = getattr(a, group), getattr(b, group)
        assert one.keys() == other.keys()
        for statistic in one:
            assert list(one[statistic]) == list(other[statistic])
            for name, values in one[statistic].items():
                torch.testing.assert_close(
                    values, other[statistic][name], rtol=tolerance, atol=tolerance / 100
                )


def test_scores_come_back_bit_by_bit_and_in_order(whole, tmp_path):
    whole.save(tmp_path / "scores.safetensors")
    loaded = Scores.load(tmp_path / "scores.safetensors")
    assert_equal(loaded, whole)
    model = classifier()
    graph = traced(model, 1, 2, 8, 8)
    for name in METHODS:
        before = Chooser(model, graph, Choice.make(name), whole).choose(0.5)
        after = Chooser(model, graph, Choice.make(name), loaded).choose(0.5)
        assert (before == after).all(), name


def test_scores_of_two_halves_add_up_to_the_whole(whole):
    data = pictures(4)
    halves = scored(data[:2]) + scored(data[2:])
    assert_equal(halves, whole, tolerance=1e-12)


def test_a_resumed_scoring_equals_an_uninterrupted_one(whole, tmp_path):
    data = pictures(4)
    scored(data, batches=3).save(tmp_path / "some.safetensors")
    resumed = scored(data, resume=Scores.load(tmp_path / "some.safetensors"))
    assert_equal(resumed, whole, tolerance=1e-12)


def test_scoring_stops_when_told_and_takes_no_batch_too_many():
    taken = []

    def loader():
        for i, batch in enumerate(pictures(9)):
            taken.append(i)
            yield batch

    assert scored(loader(), enough=lambda s: s.batches == 3).batches == 3
    assert taken == [0, 1, 2]
    taken.clear()
    assert scored(loader(), batches=2).batches == 2
    assert taken == [0, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 1}, r"differ in 'seed' \(0 and 1\); score again"),
        ({"weights": "fresh"}, r"differ in 'weights' \(given and fresh\)"),
        (
            {"methods": serving("abs")},
            r"what was gathered \(abs, grasp, magnitude, .* and abs, magn",
        ),
        ({"source": {"data": "other"}}, r"differ in 'data' \(None and other\)"),
        (
            {"seed": 1, "source": {"size": 8}},
            r"'seed' \(0 and 1\), 'size' \(None and 8\)",
        ),
    ],
)
def test_scores_that_do_not_belong_together_are_neither_added_nor_gone_on_from(
    whole, options, words
):
    with pytest.raises(UsageError, match=words):
        whole + scored(pictures(1), **options)

    def never():
        raise AssertionError("a batch was taken")
        yield

    with pytest.raises(UsageError, match=words):
        scored(never(), resume=whole, **options)


def test_what_was_found_out_does_not_keep_scores_apart(whole):
    settled = StabilityStop(lambda scores: None)
    both = settled.annotate(whole) + whole
    assert both.batches == 2 * whole.batches
    assert "agreement" not in both.settings


def test_scores_of_other_weights_cannot_be_added(whole):
    model = classifier()
    with torch.no_grad():
        model[0].weight.mul_(2)
    graph = traced(model, 1, 2, 8, 8)
    other = score(
        model, graph, pictures(1), cross_entropy, methods=serving(*STATISTICS), weights="given"
    )
    with pytest.raises(UsageError, match="differ in the weights"):
        whole + other


def test_scores_without_data_say_so():
    with pytest.raises(UsageError, match="taken without data"):
        scored(None).average("mpmg")


def test_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "scores.safetensors"
    scored(pictures(1), methods=()).save(path)
    content = path.read_bytes()
    draw = random.Random(0)
    header = 8 + int.from_bytes(content[:8], "little")
    places = [draw.randrange(header) for _ in range(150)]
    places += [draw.randrange(len(content)) for _ in range(150)]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(RanpError) as error:
            Scores.load(path)
        assert error.value.exit_code == 4
    for length in (0, 7, 100, header, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(IntegrityError):
            Scores.load(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match="do not exist"):
        Scores.load(tmp_path / "nowhere.safetensors")
    save_tensors(tmp_path / "weights.safetensors", {"w": torch.ones(2)}, {"kind": "weights"})
    with pytest.raises(IntegrityError, match="holds no scores"):
        Scores.load(tmp_path / "weights.safetensors")
