"""Row 10: no file of ours that was changed is read as if it had not been."""

from __future__ import annotations

import random

import pytest

from ranp.errors import IntegrityError
from ranp.files import load_tensors, write_text
from ranp.pruning import Scores
from ranp.schemas import read_epochs, read_file, seal_epochs
from ranp.slimming import Plan
from ranp.training.checkpoint import load_checkpoint
from tests.test_schemas import STORED, pruned  # noqa: F401 - a fixture


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


def readers(model):
    """By name of a file, what reads it and returns all that it holds, to be compared."""

    def checkpoint(path):
        load_checkpoint(path, model)
        return [parameter.tolist() for parameter in model.parameters()]

    def scores(path):
        read = Scores.load(path)
        return read.settings, read.batches, {n: s.tolist() for n, s in read.sums["mpmg"].items()}

    return {
        "plan.json": Plan.load,
        "pruning.json": lambda path: read_file(path, "pruning"),
        "scores.safetensors": scores,
        "weights.safetensors": lambda path: {
            n: t.tolist() for n, t in load_tensors(path, "weights")[0].items()
        },
        "last.safetensors": checkpoint,
        "metrics.jsonl": lambda path: read_epochs(path.parent),
        **{f"{kind}.json": lambda path, kind=kind: read_file(path, kind) for kind in STORED},
    }


@pytest.mark.parametrize("each", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_row_10_no_mutation_of_any_file_is_read(each, pruned, tmp_path):  # noqa: F811
    """With 100 of each: 1,100 mutations over 11 kinds of files."""
    directory, model = pruned
    epochs = [{"epoch": 1, "loss": 0.5, "metrics": {"dice": 0.25}}, {"epoch": 2, "loss": 0.25}]
    lines = seal_epochs(epochs, None)
    write_text(directory / "metrics.jsonl", "".join(f"{line}\n" for line in lines))
    rng, refused, harmless = random.Random(0), 0, 0
    for name, read in readers(model).items():
        good = (directory / name).read_bytes()
        path = tmp_path / name
        path.write_bytes(good)
        expected = read(path)
        for _ in range(each):
            content = bytearray(good)
            while content == good:
                rng.choice(MUTATIONS)(content, rng.randrange(len(content)), rng)
            path.write_bytes(content)
            try:
                assert read(path) == expected, (name, "was read, and is another")
                harmless += 1  # a space more or less between the values of a JSON file
            except IntegrityError:
                refused += 1
    assert refused + harmless == each * 11
    assert harmless < refused / 5
