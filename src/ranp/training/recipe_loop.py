"""A recipe as a network and a training function, for what takes the user's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from torch import Tensor, nn

from ranp.datasets.loader import Loader
from ranp.datasets.tasks import Batch
from ranp.files import json_sha256
from ranp.pruning import LossFunction
from ranp.training.job import Job
from ranp.training.loop import Diverged
from ranp.training.networks import build_network
from ranp.training.preparation import ensure_data, open_splits
from ranp.training.run import make_fabric, make_trainer

MAX_CHECK_INS = 500
"""Check-ins of a training: 5 % of them are enough for a race of five candidates."""

MIN_STEPS = 25
"""Steps between two check-ins: after fewer, candidates differ by luck alone."""


@dataclass(frozen=True)
class RecipeLoop:
    """The network and the training of a recipe, as `ranp.race` takes them.

    Attributes:
        job: Configuration, and where the data is; generated data lies in the job's directory.
    """

    job: Job

    @property
    def name(self) -> str:
        """Name of the trainings in a store: the recipe, its data, and a digest of all settings."""
        given = "generated data" if self.job.data is None else self.job.data.resolve().name
        settings = {
            **self.job.config.model_dump(mode="json", exclude={"seed"}),
            "data directory": None if self.job.data is None else str(self.job.data.resolve()),
            "steps": self._steps_per_check_in,
        }
        return f"{self.job.config.recipe} on {given}, settings {json_sha256(settings)[:8]}"

    @property
    def length(self) -> int:
        """Check-ins of a whole training."""
        return math.ceil(self._steps / self._steps_per_check_in)

    @property
    def _steps_per_check_in(self) -> int:
        return max(MIN_STEPS, math.ceil(self._steps / MAX_CHECK_INS))

    @cached_property
    def _steps(self) -> int:
        ensure_data(self.job)
        config = self.job.config
        train = Loader(open_splits(self.job)[0], config.batch, training=True)
        return config.epochs * math.ceil(len(train) / config.accumulate)

    def build(self) -> nn.Module:
        """Return the full network."""
        return build_network(self.job.config.network, self.job.factory)

    def train(self, model: nn.Module, seed: int) -> Iterator[dict[str, float]]:
        """Train a network with the recipe's settings; yield goal and loss at every check-in."""
        ensure_data(self.job)
        config = self.job.config.model_copy(update={"seed": seed})
        job = replace(self.job, config=config)
        trainer = make_trainer(make_fabric(config), model, job, open_splits(job))
        goal = trainer.task.goal
        try:
            yield from trainer.check_ins(self._steps_per_check_in)
        except Diverged:
            yield {goal: math.nan, "loss": math.nan}

    def score_with(self) -> tuple[Samples, LossFunction]:
        """Return samples and loss to score with, as pruning by the recipe has them."""
        ensure_data(self.job)
        config = self.job.config
        train, _ = open_splits(self.job)
        task = config.data.dataset.make_task(config.data.size, train.reader.metadata)
        loader = Loader(train, 1, training=True, workers=config.data.workers)
        return Samples(loader, config.pruning.batches), task.scoring_loss


@dataclass(frozen=True)
class Samples:
    """Batches as pairs (input, batch): a task's loss takes the whole batch as target.

    Attributes:
        loader: Yields the batches.
        limit: Maximum number of batches; all if None.
    """

    loader: Loader
    limit: int | None

    def __iter__(self) -> Iterator[tuple[Tensor, Batch]]:
        """Yield the pairs."""
        return ((batch["x"], batch) for batch in islice(self.loader, self.limit))
