"""A recipe as a training function: the same training as `ranp train`, for what races."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ranp.training.config import Config, load_config
from ranp.training.job import Job
from ranp.training.networks import build_network
from ranp.training.preparation import fresh_network, open_splits
from ranp.training.recipe_loop import RecipeLoop
from ranp.training.run import make_fabric, make_trainer, train
from ranp.trials.race import race


def test_it_trains_as_the_recipe_does(
    tiny: Callable[..., Config], crops: Path, tmp_path: Path
) -> None:
    loop = RecipeLoop(Job(tiny(), tmp_path / "loop", data=crops))
    lines = list(loop.train(fresh_network(loop.build(), None, seed=3), 3))
    record = train(Job(tiny(seed=3), tmp_path / "run", data=crops))
    goal = record["goal"]
    assert len(lines) == loop.length == 1  # eight steps in all
    assert lines[-1][goal] == record["metrics"][goal]["last"]


def test_check_ins_do_not_change_the_training(
    tiny: Callable[..., Config], crops: Path, tmp_path: Path
) -> None:
    job = Job(tiny(epochs=3), tmp_path, data=crops)

    def trained(steps: int) -> list[dict[str, float]]:
        model = fresh_network(build_network(job.config.network), None, seed=0)
        trainer = make_trainer(make_fabric(job.config), model, job, open_splits(job))
        return list(trainer.check_ins(steps))

    often, seldom = trained(2), trained(12)
    assert (len(often), len(seldom)) == (6, 1)  # three epochs of four steps
    goal = next(iter(often[0]))
    assert often[-1][goal] == seldom[-1][goal]
    assert sum(line["loss"] for line in often) / 6 == pytest.approx(seldom[0]["loss"])


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
        budget={"flops": "60%"}, candidates=["thin", "ranp-f"], cost=4, out=tmp_path, tell=str,
    )  # fmt: skip
    assert set(found.widths) >= {"thin", "ranp-f"}
    assert found.plan.costs["slim"]["gflops"] == pytest.approx(
        0.6 * found.plan.costs["full"]["gflops"], rel=0.1
    )


def test_trainings_with_other_settings_are_other_trainings(
    tiny: Callable[..., Config], crops: Path, tmp_path: Path
) -> None:
    names = {
        RecipeLoop(Job(config, tmp_path, data=crops)).name
        for config in (tiny(), tiny(), tiny(seed=1), tiny(optimizer__lr=0.1), tiny(epochs=3))
    }
    assert len(names) == 3  # the seed is no setting of a training function


def test_it_scores_with_the_loss_that_pruning_takes(tmp_path: Path) -> None:
    changes = {"data.options.loss": "authors", "data.cases": 5, "data.generated_size": 24}
    config = load_config("brats-unet3d", smoke=True, changes=changes)
    samples, loss = RecipeLoop(Job(config, tmp_path)).score_with()
    target = next(iter(samples))[1]["y"]
    output = torch.zeros(1, 5, *target.shape[1:])  # all five classes are equally likely
    dice = [
        2 * 0.2 * count / (0.2 * target.numel() + count)
        for count in (int((target == label).sum()) for label in range(1, 5))
    ]
    expected = math.log(5) + 0.25 * sum(1 - each for each in dice)
    assert float(loss(output, {"y": target})) == pytest.approx(expected, rel=1e-4)
