"""Batches that depend on (seed, epoch, position) alone.

The same samples come in the same order with any number of workers, after a stop in the middle of
an epoch, and on as many processes as you like.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from ranp.data.cases import Cases, Key, Sample
from ranp.errors import UsageError

_SHUFFLE_STREAM = 0x5EED  # keeps the order's random numbers apart from the samples' own


@dataclass(frozen=True)
class Shard:
    """Which part of the data a process of a distributed run sees."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise UsageError(f"rank {self.rank} is not within 0 to {self.world - 1}")


def epoch_batches(
    cases: int, batch: int, *, seed: int, epoch: int, training: bool, shard: Shard
) -> list[list[Key]]:
    """The keys of every batch of an epoch that a process sees.

    For training the order is shuffled anew every epoch, every process gets the same number of
    whole batches, and the few cases left over take part in another epoch. For validation the
    order is the data set's, every case is seen exactly once over all processes, and the last
    batch may be smaller; with more processes than cases some get none.

    Args:
        cases: Number of cases in the data set.
        batch: Batch size of one process.
        seed: Decides the order.
        epoch: Decides the order, and goes into the keys.
        training: See above.
        shard: The process.
    """
    order = np.arange(cases)
    if training:
        order = np.random.default_rng([_SHUFFLE_STREAM, seed, epoch]).permutation(cases)
        order = order[: cases - cases % (batch * shard.world)]
    keys = [(epoch, int(index)) for index in order[shard.rank :: shard.world]]
    return [keys[start : start + batch] for start in range(0, len(keys), batch)]


class Loader:
    """Loads batches `{"x": tensor, "y": tensor, "id": [str, ...], ...}`.

    Example:
        >>> loader = Loader(cases, batch=2, training=True, workers=2)  # doctest: +SKIP
        >>> for batch in loader.epoch(3, start=10):                    # doctest: +SKIP
        ...     ...                                # epoch 3 from its 11th batch on
    """

    def __init__(
        self,
        cases: Cases,
        batch: int,
        *,
        training: bool,
        workers: int = 0,
        shard: Shard = Shard(),  # noqa: B008 - frozen
    ) -> None:
        """Prepares a loader; nothing is read yet.

        Args:
            cases: The data set; its seed decides order and randomness.
            batch: Batch size of this process.
            training: Shuffled, whole batches; otherwise in order, every case once.
            workers: Processes that read ahead; 0 reads in this one.
            shard: This process's share of a distributed run.
        """
        if batch < 1:
            raise UsageError(f"batch size {batch} is not positive")
        if training and len(cases) < batch * shard.world:
            raise UsageError(
                f"{len(cases)} cases do not fill one training batch of {batch} on each of "
                f"{shard.world} processes; use a smaller batch"
            )
        self.cases = cases
        self.batch = batch
        self.training = training
        self.workers = workers
        self.shard = shard

    def __len__(self) -> int:
        return len(self._batches(0))

    def __iter__(self) -> Iterator[Sample]:
        """The batches of epoch 0."""
        return self.epoch(0)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Sample]:
        """The batches of an epoch.

        Args:
            epoch: From 0.
            start: Batches that were seen before a stop and are left out.
        """
        loader: DataLoader[Any] = DataLoader(
            self.cases,
            batch_sampler=self._batches(epoch)[start:],
            num_workers=self.workers,
        )
        return iter(loader)

    def _batches(self, epoch: int) -> list[list[Key]]:
        return epoch_batches(
            len(self.cases),
            self.batch,
            seed=self.cases.seed,
            epoch=epoch,
            training=self.training,
            shard=self.shard,
        )
