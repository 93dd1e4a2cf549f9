"""A recipe as a training function: the same training as `ranp train`, for what races."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ranp.training.config import Config
from ranp.training.job import Job
from ranp.training.preparation import fresh_network
from ranp.training.recipe_loop import RecipeLoop
from ranp.training.run import train
from ranp.trials.race import race


def test_it_trains_as_the_recipe_does(
    tiny: Callable[..., Config], crops: Path, tmp_path: Path
) -> None:
    loop = RecipeLoop(Job(tiny(), tmp_path / "loop", data=crops))
    lines = list(loop.train(fresh_network(loop.build(), None, seed=3), 3))
    record = train(Job(tiny(seed=3), tmp_path / "run", data=crops))
    goal = record["goal"]
    assert len(lines) == loop.length == 2
    assert lines[-1][goal] == record["metrics"][goal]["last"]


def test_a_loss_that_is_not_finite_ends_it(
    tiny: Callable[..., Config], crops: Path, tmp_path: Path
) -> None:
    loop = RecipeLoop(Job(tiny(optimizer__lr=1e30), tmp_path, data=crops))
    lines = list(loop.train(fresh_network(loop.build(), None, seed=0), 0))
    assert lines[-1]["loss"] != lines[-1]["loss"]


def test_it_races(tiny: Callable[..., Config], crops: Path, tmp_path: Path) -> None:
    loop = RecipeLoop(Job(tiny(), tmp_path, data=crops))
    found = race(
        loop.build, loop.train, length=loop.length, name=loop.name, score_with=loop.score_with(),
        budget={"flops": "40%"}, candidates=["thin", "ranp-f"], cost=4, out=tmp_path, tell=str,
    )  # fmt: skip
    assert set(found.widths) >= {"thin", "ranp-f"}
    assert found.plan.costs["slim"]["gflops"] == pytest.approx(
        0.4 * found.plan.costs["full"]["gflops"], rel=0.1
    )
