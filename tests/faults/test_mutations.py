"""Rows 10 and 35, over every kind of file: none that was changed, or is not valid, is read."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ranp.errors import IntegrityError, RanpError
from tests.faults.stored import edited, write_files

KINDS = 14
# What is the user's own, and may be of any type.
FREE = {("config", "network", "options")}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:  # times are kept, whatever else is running
        patch.setattr("ranp.resources.timing_cache.others_running", lambda: 0.0)
        # A stored correction must not change what other tests predict.
        patch.setenv("RANP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield write_files(tmp_path_factory.mktemp("stored"))


def places(value, path=()):
    """Yield where values are, and the values; of a long list, its ends."""
    if path:
        yield path, value
    if isinstance(value, dict):
        inner = value.items()
    else:
        inner = enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        if isinstance(value, dict) or key in (0, len(value) - 1):
            yield from places(each, (*path, key))


def of_another_type(value):
    """Yield what cannot stand in the place of a value; nothing where there is none."""
    if value is not None:
        others = {"text": str, -7.5: float | int | bool, ("list",): list, "object": dict}
        stands = {"object": {"a": {}}, ("list",): [[{}]]}
        for other, kind in others.items():
            if not isinstance(value, kind):
                yield stands.get(other, other)


OUT_OF_RANGE = (..., None, -7.5, 10**30, "", [], {})
"""What may or may not stand there: left out, missing, negative, huge, empty."""


def edits(content):
    """Yield all edits: where, with what, and whether the file must be refused for it."""
    for path, value in places(content):
        free = any(path[: len(each)] == each for each in FREE)
        yield from ((path, other, not free) for other in of_another_type(value))
        yield from ((path, other, False) for other in OUT_OF_RANGE if other != value)


def try_edits(file, chosen):
    """Apply edits to a file, and return how many were refused, and how many valid."""
    content, seen = file.parse(file.path), Counter()
    good = file.path.read_bytes()
    for path, value, must in chosen:
        try:
            file.seal(file.path, edited(content, path, value))
            file.use(file.path)
            assert not must, f"{path} = {value!r} was read"
            seen["valid"] += 1
        except RanpError as error:
            said = str(error)
            assert "\n" not in said, said
            assert isinstance(error, IntegrityError) or not must, (path, value, said)
            named = [key for key in path if isinstance(key, str)]
            named += ["expected", "another"] if "kind" in path else ["line"]
            assert not must or any(key in said for key in named), (path, value, said)
            seen["refused"] += 1
        finally:
            file.path.write_bytes(good)
    return seen


@pytest.mark.parametrize("most", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_row_35_no_resealed_edit_of_any_kind_of_file_is_an_error_of_ours(most, stored):
    """Each is refused with the field's name, or what it says is valid and is used as it is."""
    rng, total = random.Random(0), Counter()
    for name, file in stored.items():
        file.use(file.path)
        every = list(edits(file.parse(file.path)))
        seen = try_edits(file, every if len(every) <= most else rng.sample(every, most))
        total += seen
        print(f"{name}: {dict(seen)} of {len(every)} edits")
    assert len(stored) == KINDS and total["refused"] > total["valid"]


EXPLORED = ("explorer", "methods", "ranp-f")
WRONG = {
    "plan": {
        "a floor that is not kept": (("settings", "floor"), 7, "settings.floor"),
        "a third network": (("costs", "other"), 1, "costs.other"),
        "a slim network that costs nothing": (("costs", "slim", "gflops"), 0.0, "slim.gflops"),
        "a protected layer of two lines": (("protect", 0), "4\n4", "protect.0"),
    },
    "pruning record": {
        "another sparsity": (("settings", "sparsity"), 0.123, "settings.sparsity"),
        "a full network without memory": (("totals", "full", "memory_mb"), 0.0, "full.memory_mb"),
        "sparsities out of order": (("explorer", "sparsities", 1), 0.99, "sparsities"),
        "a table cut off": ((*EXPLORED, "flops", "base64"), "AAAA", "ranp-f.flops"),
        "half a number": ((*EXPLORED, "kept", "base64"), "AA==", "ranp-f.kept"),
        "neurons that the table has not": ((*EXPLORED, "totals", 0, 3), 1, "totals.0.3"),
        "more than the full network": ((*EXPLORED, "totals", 5, 0), 1e6, "totals.5"),
        "quantiles of a block gone": ((*EXPLORED, "quantiles", 0), ..., "ranp-f.quantiles"),
        "quantiles out of order": ((*EXPLORED, "quantiles", 0, 0), 1e6, "ranp-f.quantiles"),
        "more held than there is": (("timelines", "slim", "holders", 0, 1), 2**40, "holders"),
    },
    "scores": {"sums of no batch": (("ranp", "batches"), 0, "batches")},
    "data": {
        "another case": (("train", 0), "other", "fingerprint"),
        "cases of another order": (("fingerprint",), "0" * 64, "fingerprint"),
        "a label twice": (("regions", "anterior"), [1, 1], "regions.anterior"),
    },
    "training record": {
        "another recipe": (("recipe",), "other", "recipe"),
        "another seed": (("seed",), 12345, "seed"),
        "epochs that were not asked for": (("epochs",), 3, "epochs"),
        "a metric that no epoch had": (("metrics", "dice", "last"), 0.987, "metrics.dice.last"),
        "another mean": (("metrics", "dice", "mean"), 0.987, "metrics.dice.mean"),
        "a negative deviation": (("metrics", "dice", "std"), -0.1, "metrics.dice.std"),
        "a metric gone": (("metrics", "dice anterior"), ..., "metrics.dice anterior"),
        "a best epoch to come": (("best", "epoch"), 3, "best.epoch"),
        "a best value of no epoch": (("best", "dice"), 0.987, "best"),
        "a best value of another metric": (("best", "dice"), 0.0, "best"),
        "less time than its epochs": (("seconds",), 0.0, "seconds"),
        "a full network without FLOPs": (("full", "gflops"), 0.0, "full.gflops"),
        "a full network without neurons": (("full", "neurons"), 0, "full.neurons"),
    },
    "checkpoint": {
        "a best value of no epoch": (("state", "progress", "best"), 0.987, "best"),
        "a best value of none": (("state", "progress", "best_epoch"), None, "best"),
        "less time than its epochs": (("state", "progress", "seconds"), 0.0, "seconds"),
        "a loss of no batch": (("state", "progress", "loss"), 0.5, "loss"),
        "a metric gone": (("state", "progress", "history", 0, "metrics", "dice"), ..., "metrics"),
    },
    "metrics": {
        "time that runs back": ((0, "seconds"), 1e6, "seconds"),
        "a metric gone": ((0, "metrics", "dice"), ..., "metrics"),
        "no metrics in a line that has them": ((0, "metrics"), {}, "metrics"),
        "of no run": ((1, "run"), None, "another run"),
    },
    "cell": {
        "a full network without FLOPs": (("result", "full", "gflops"), 0, "full.gflops"),
        "a network without FLOPs": (("result", "gflops"), 0.0, "gflops"),
        "more neurons than the full network": (("result", "neurons"), 13, "neurons"),
        "more memory than the full network": (("result", "memory_mb"), 2.5, "memory_mb"),
        "another accuracy": (("result", "accuracy"), 0.6, "accuracy"),
        "another deviation": (("result", "deviation"), 0.0, "deviation"),
        "an outcome that is not told": (("result", "outcome"), ..., "outcome"),
        "no full network": (("result", "full"), None, "full"),
        "no deviation": (("result", "deviation"), ..., "deviation"),
        "no metrics": (("result", "metrics"), {}, "goal"),
        "a negative deviation": (("result", "metrics", "dice", "std"), -0.1, "dice.std"),
        "nothing": (("result",), {}, "result.outcome"),
    },
    "nnU-Net's plans": {
        "slim above full": (("memory", "slim"), 2**34, "memory"),
        "slim above full in nnU-Net's eyes": (("nnunet_estimate", "slim"), 8.0, "estimate"),
        "another patch": (("training", "input"), [1, 8, 16], "training.input"),
    },
}
"""Edits of single values that have the right type, and mean what cannot be."""


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in WRONG for name in WRONG[kind]])
def test_row_35_what_cannot_be_is_refused_by_name(kind, name, stored):
    file, (path, value, field) = stored[kind], WRONG[kind][name]
    good = file.path.read_bytes()
    file.use(file.path)
    try:
        file.seal(file.path, edited(file.parse(file.path), path, value))
        with pytest.raises(IntegrityError) as error:
            file.use(file.path)
    finally:
        file.path.write_bytes(good)
    assert field in str(error.value) and "\n" not in str(error.value)
    assert error.value.exit_code == 4


def flip(content, where, rng):
    content[where] ^= 1 << rng.randrange(8)


def cut(content, where, rng):
    del content[where:]


def leave_out(content, where, rng):
    del content[where : where + rng.randint(1, 40)]


def insert(content, where, rng):
    content[where:where] = rng.randbytes(rng.randint(1, 8))


def exchange(content, where, rng):
    other = rng.randrange(len(content))
    content[where], content[other] = content[other], content[where]


def repeat(content, where, rng):
    content[where:where] = content[where : where + rng.randint(1, 40)]


MUTATIONS = (flip, flip, cut, leave_out, insert, exchange, repeat)


@pytest.mark.parametrize("each", [4, pytest.param(80, marks=pytest.mark.slow)])
def test_row_10_no_mutation_of_any_kind_of_file_is_read(each, stored):
    rng, total = random.Random(1), Counter()
    for name, file in stored.items():
        good, seen = file.path.read_bytes(), Counter()
        expected = file.use(file.path)
        for _ in range(each):
            content = bytearray(good)
            while content == good:
                rng.choice(MUTATIONS)(content, rng.randrange(len(content)), rng)
            file.path.write_bytes(content)
            try:
                assert file.use(file.path) == expected, (name, "was read, and is another")
                seen["the same"] += 1  # a space more or less between the values of a JSON file
            except IntegrityError as error:
                assert "\n" not in str(error)
                seen["refused"] += 1
            finally:
                file.path.write_bytes(good)
        total += seen
        print(f"{name}: {dict(seen)}")
    assert sum(total.values()) == each * KINDS and total["refused"] > 4 * total["the same"]
