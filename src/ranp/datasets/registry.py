"""The registry of data sets: a row carries all that the package knows of one.

Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ranp.datasets.verification import Checked, Inventory, Problem
from ranp.errors import UsageError, lookup, register, suggest

if TYPE_CHECKING:
    from torch import Tensor

    from ranp.datasets.tasks import Task

Metadata = Mapping[str, Any]
"""JSON values that a split carries besides cases, such as names of classes; stored with runs."""

Predictor = Callable[[NDArray[np.float32]], "Tensor"]
"""`predictor(x)` -> output of the network; both of one sample, without batch dimension."""


class Reader:
    """Reads the cases of a split as NumPy arrays. Frozen, so that workers can share it."""

    @property
    def ids(self) -> Sequence[str]:
        """One stable name per case."""
        raise NotImplementedError

    @property
    def metadata(self) -> Metadata:
        """Facts that task and prediction need; nothing by default."""
        return {}

    def read(self, index: int, rng: np.random.Generator) -> Mapping[str, Any]:
        """Read a case: arrays `x` and `y`, and what else the task needs.

        Args:
            index: Position in `ids`.
            rng: The only source of randomness allowed (crops, flips, frame positions).
        """
        raise NotImplementedError

    def resized(self, size: int) -> Reader:
        """Return a reader of the same cases at another edge; a dataclass with `size` has it."""
        return replace(self, size=size)  # type: ignore[type-var]


@dataclass(frozen=True)
class CaseReader(Reader):
    """Base of readers of cases that were listed before.

    Attributes:
        cases: Cases to read, each with a stable name `id`.
        size: Edge of grids, crops or frames.
    """

    cases: tuple[Any, ...]
    size: int

    @property
    def ids(self) -> Sequence[str]:
        """Names of the cases."""
        return [case.id for case in self.cases]


@dataclass(frozen=True)
class Facts:
    """Facts of a data set, for recipes that scale themselves to it.

    Attributes:
        channels: Channels of a sample.
        classes: Number of classes, background included.
        shape: Median (depth, height, width) of the cases.
        cases: Number of cases with labels.
        size: Edge of samples that suits the shape.
    """

    channels: int
    classes: int
    shape: tuple[int, int, int]
    cases: int
    size: int


@dataclass(frozen=True)
class Dataset:
    """A data set.

    Functions that other processes call (`check`, `sample`) must be at module level.

    Attributes:
        name: Name on the command line and in recipes.
        about: One-line description.
        recipe: Name of the packaged recipe that trains on it.
        size: Default edge of grids, crops or frames.
        inventory: `inventory(directory)` lists the cases without reading them.
        check: `check(case)` reads one case of the inventory and says what is wrong with it.
        open_reader: `open_reader(directory, split, size=, fold=)` opens one split.
        write: `write(directory, cases=, size=, seed=, classes=)` writes a synthetic data set in
            the real format; equal arguments give equal files.
        sample: `sample(index, volume=, seed=, classes=)` draws a case of the endless synthetic data
            set `seed` in memory; returns what `Reader.read` returns.
        task_name: Name of the task in recipes and stored runs.
        task: `task(window=, metadata=)` makes the task; see `make_task`.
        predict: `predict(network, source, target, size=, metadata=, category=)` predicts one input
            file with a `Predictor`, writes the result and returns a summary by name: counts by
            label, rows of `class` and `probability`, or any other JSON value.
        draw: `draw(samples)` returns a matplotlib figure.
        conclude: Problems and notes that show only when all cases are seen together.
        describe: `describe(directory)` returns `Facts` for recipes that scale themselves.
        frames: Depth of a sample that does not follow `size`, as the frames of a clip.
        whole_volumes: Whether validation samples are whole volumes, which differ in shape.
        classes: Classes of synthetic data by default; None where there is no choice.
        categories: Categories that a prediction may be restricted to.
        has_cache: Whether `open_reader` takes `cache`, a directory for what was read.
        options: Settings that a recipe may change (`data.options`): by name, a function of the data
            set and the value that returns the data set with it.
    """

    name: str
    about: str
    recipe: str
    size: int
    inventory: Callable[[Path], Inventory]
    check: Callable[[Any], Checked]
    open_reader: Callable[..., Reader]
    write: Callable[..., None]
    sample: Callable[..., Mapping[str, Any]]
    task_name: str
    task: Callable[..., Task]
    predict: Callable[..., dict[str, Any]]
    draw: Callable[..., Any]
    conclude: Callable[[Sequence[Checked]], tuple[list[Problem], list[str]]] = lambda _: ([], [])
    describe: Callable[[Path], Facts] | None = None
    frames: int | None = None
    whole_volumes: bool = False
    classes: int | None = None
    categories: tuple[str, ...] = ()
    has_cache: bool = False
    options: Mapping[str, Callable[[Dataset, Any], Dataset]] = field(default_factory=dict)

    def configured(self, options: Mapping[str, Any]) -> Dataset:
        """Return the data set with some of its options set.

        Raises:
            UsageError: It has no such option, or a value is wrong.
        """
        result = self
        for name, value in options.items():
            if name not in self.options:
                hint = suggest(name, self.options) if self.options else " It has none."
                raise UsageError(f"data set '{self.name}' has no option '{name}'.{hint}")
            result = self.options[name](result, value)
        return result

    def make_task(self, window: int, metadata: Metadata | None = None) -> Task:
        """Make the task of the data set.

        Args:
            window: Edge of the training crops.
            metadata: Metadata of the training data; without it, a task for the loss alone.
        """
        return self.task(window=window, metadata=metadata or {})

    def volume(self, size: int, frames: int | None = None) -> tuple[int, int, int]:
        """Return depth, height and width of a sample.

        Args:
            size: Edge of grids, crops or frames.
            frames: Number of frames, if not the data set's own; no effect on volumes.
        """
        return (size if self.frames is None else frames or self.frames), size, size


DATASETS: dict[str, Dataset] = {}
"""All registered data sets by name."""


def register_dataset(dataset: Dataset) -> Dataset:
    """Register a data set under its name.

    Raises:
        UsageError: The name is taken.
    """
    return register(DATASETS, dataset.name, dataset, "data set")


def find_dataset(name: str) -> Dataset:
    """Return the data set of a name; raise `UsageError` if there is none."""
    return lookup(DATASETS, name, "kind of data")
