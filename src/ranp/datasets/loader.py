"""Batches that depend on (seed, epoch, position) alone.

The same samples come in the same order with any number of workers, after a stop in the middle of
an epoch, and on as many processes as you like.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ranp.datasets.cases import Cases, Key, Sample
from ranp.errors import UsageError

_SHUFFLE_STREAM = 0x5EED  # keeps the order's random numbers apart from the samples' own


@dataclass(frozen=True)
class Shard:
    """Part of the data that a process of a distributed run sees."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise UsageError(f"rank must be 0 to {self.world - 1}, got {self.rank}")


def epoch_batches(
    cases: int, batch: int, *, seed: int, epoch: int, training: bool, shard: Shard
) -> list[list[Key]]:
    """Return the keys of every batch of an epoch that a process (`shard`) sees.

    For training the order is shuffled again every epoch, every process gets the same number of
    whole batches, and the few cases left over take part in another epoch. For validation the
    order is the data set's, every case is seen exactly once over all processes, and the last
    batch may be smaller; with more processes than cases some get none.
    """
    order = np.arange(cases)
    if training:
        order = np.random.default_rng([_SHUFFLE_STREAM, seed, epoch]).permutation(cases)
        order = order[: cases - cases % (batch * shard.world)]
    keys = [(epoch, int(index)) for index in order[shard.rank :: shard.world]]
    return [keys[start : start + batch] for start in range(0, len(keys), batch)]


@dataclass(eq=False)
class Loader:
    """Loads batches `{"x": tensor, "y": tensor, "id": [str, ...], ...}`.

    Workers are started by the first epoch and live as long as the loader: starting them takes
    longer than reading many a small data set. They read for one epoch at a time.

    Attributes:
        cases: The data set; its seed decides order and randomness.
        batch: Batch size of this process.
        training: Shuffled, whole batches; otherwise in order, every case once.
        workers: Processes that read ahead; 0 reads in this one.
        shard: This process's share of a distributed run.

    Example:
        >>> loader = Loader(cases, batch=2, training=True, workers=2)  # doctest: +SKIP
        >>> for batch in loader.epoch(3, start=10):                    # doctest: +SKIP
        ...     ...                                # epoch 3 from its 11th batch on
    """

    cases: Cases
    batch: int
    _: KW_ONLY
    training: bool
    workers: int = 0
    shard: Shard = Shard()
    _pool: DataLoader[Any] | None = field(default=None, init=False, repr=False)
    _read_ahead: list[list[Key]] = field(default_factory=list, init=False, repr=False)
    """Batches of the epoch that the workers read; the same list in every epoch."""
    _epochs: int = field(default=0, init=False, repr=False)
    """Epochs that the workers have begun."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"batch size must be positive, got {self.batch}")
        if self.training and len(self.cases) < self.batch * self.shard.world:
            raise UsageError(
                f"{len(self.cases)} cases do not fill one training batch of {self.batch} on each "
                f"of {self.shard.world} processes; use a smaller batch"
            )

    def __len__(self) -> int:
        return len(self._batches(0))

    def __iter__(self) -> Iterator[Sample]:
        """Iterate over the batches of epoch 0."""
        return self.epoch(0)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Sample]:
        """Iterate over the batches of an epoch.

        Args:
            epoch: Number of the epoch, from 0.
            start: Number of batches to skip, as they were seen before a stop.
        """
        batches = self._batches(epoch)[start:]
        if not batches:
            return iter(())
        if self.workers == 0:
            return iter(self._torch_loader(batches))
        if self._pool is None:
            self._pool = self._torch_loader(self._read_ahead)
        self._read_ahead[:] = batches
        self._epochs += 1
        return self._from_workers(iter(self._pool), self._epochs, len(batches))

    def _torch_loader(self, batches: Iterable[list[Key]]) -> DataLoader[Any]:
        return DataLoader(
            self.cases,
            batch_sampler=batches,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            # Torch draws a seed for its workers: not from the random numbers of the training.
            generator=torch.Generator(),
        )

    def _from_workers(self, loaded: Iterator[Sample], number: int, left: int) -> Iterator[Sample]:
        for _ in range(left):
            if self._epochs != number:
                raise UsageError(
                    "another epoch of this loader was begun: its workers read one at a time"
                )
            yield next(loaded)

    def _batches(self, epoch: int) -> list[list[Key]]:
        return epoch_batches(
            len(self.cases),
            self.batch,
            seed=self.cases.seed,
            epoch=epoch,
            training=self.training,
            shard=self.shard,
        )
