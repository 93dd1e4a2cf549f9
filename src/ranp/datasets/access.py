"""Open, generate, verify and draw data sets by name.

Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ranp.datasets.registry import Reader, find_dataset
from ranp.datasets.verification import Report, check_all, summarise
from ranp.errors import UsageError, import_extra
from ranp.files import atomic_write, ensure_directory

MAX_EDGE, MAX_CASES = 2048, 10**7
"""Limits of sizes and numbers of cases; what is larger is a typing error."""

if TYPE_CHECKING:
    from ranp.datasets.cases import Cases


def existing_directory(directory: str | Path) -> Path:
    """Return a data set's directory as a path, or raise `UsageError` if it does not exist."""
    directory = Path(directory)
    if not directory.is_dir():
        raise UsageError(f"data directory '{directory}' does not exist")
    return directory


def open_cases(
    name: str,
    directory: str | Path,
    split: str,
    *,
    size: int | None = None,
    fold: int = 0,
    seed: int = 0,
    cache: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> Cases:
    """Open one split of a data set on disk.

    Args:
        name: A registered data set, such as "brats" (`ranp.datasets.DATASETS`).
        directory: Directory of the data set.
        split: "train", "validation" or, for ShapeNet, "test".
        size: Edge of grids, crops or frames; by default the data set's own.
        fold: Fold that validates, or the official split less one (UCF101).
        seed: Seed of crops, flips and the order of training.
        cache: Directory to keep voxel grids in (ShapeNet).
        options: Settings of the data set, such as {"divisor": 1} (UCF101).
    """
    dataset = find_dataset(name).configured(options or {})
    if cache is not None and not dataset.has_cache:
        raise UsageError(f"data set '{name}' has no cache; leave it out")
    cached = {} if cache is None else {"cache": Path(cache)}
    size = dataset.size if size is None else size
    directory = existing_directory(directory)
    reader = dataset.open_reader(directory, split, size=size, fold=fold, **cached)
    from ranp.datasets.cases import Cases  # torch takes seconds to import: not before it is needed

    return Cases(reader, seed)


@dataclass(frozen=True)
class SyntheticReader(Reader):
    """Reader of synthetic cases in memory: `sample` draws the case of an index."""

    name: str
    samples: int
    sample: Callable[[int], Mapping[str, Any]]

    @property
    def ids(self) -> Sequence[str]:
        """`<data set>-<index>`."""
        return [f"{self.name}-{index:05d}" for index in range(self.samples)]

    def read(self, index: int, rng: np.random.Generator) -> Mapping[str, Any]:
        """Draw a case; nothing about it depends on `rng`."""
        return self.sample(index)


def synthetic_cases(
    name: str,
    *,
    size: int,
    samples: int,
    seed: int,
    frames: int | None = None,
    classes: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Cases:
    """Return synthetic cases in memory, the same ones that `synthesise` writes.

    Args:
        name: A registered data set.
        size: Edge of grids, volumes or frames.
        samples: Number of cases.
        seed: Seed of the cases.
        frames: Frames of a clip; no effect on volumes.
        classes: Number of classes, where the data set has a choice.
        options: Settings of the data set.
    """
    from ranp.datasets.cases import Cases

    dataset = find_dataset(name).configured(options or {})
    volume, classes = dataset.volume(size, frames), classes or dataset.classes or 0
    sample = partial(dataset.sample, volume=volume, seed=seed, classes=classes)
    return Cases(SyntheticReader(name, samples, sample), seed)


def synthesise(
    name: str,
    directory: str | Path,
    *,
    cases: int,
    size: int,
    seed: int,
    classes: int | None = None,
) -> None:
    """Write a synthetic data set in the real format.

    Args:
        name: A registered data set.
        directory: A new or empty directory.
        cases: Number of cases.
        size: Edge of volumes and frames; no effect on shapes, which are points.
        seed: Seed of the cases; the same seed gives the same files.
        classes: Number of classes, where the data set has a choice.
    """
    dataset, directory = find_dataset(name), Path(directory)
    if classes is not None and dataset.classes is None:
        raise UsageError(f"data set '{name}' has no choice of classes; leave it out")
    if directory.is_dir() and any(directory.iterdir()):
        raise UsageError(f"'{directory}' is not empty; choose a new directory")
    if cases < 1:
        raise UsageError(f"the number of cases must be at least 1, got {cases}")
    if cases > MAX_CASES or size > MAX_EDGE:
        raise UsageError(
            f"cases must be at most {MAX_CASES} and their size at most {MAX_EDGE}, got {cases} of "
            f"size {size}"
        )
    is_new = not directory.exists()
    ensure_directory(directory)
    try:
        chosen = classes or dataset.classes or 0
        dataset.write(directory, cases=cases, size=size, seed=seed, classes=chosen)
    except UsageError:  # a size or a number of classes that the data set does not have
        if is_new and not any(directory.iterdir()):
            directory.rmdir()
        raise


def verify(
    name: str,
    directory: str | Path,
    *,
    workers: int | None = None,
    started: Callable[[int], None] = lambda total: None,
    progress: Callable[[], None] = lambda: None,
) -> Report:
    """Read every case of a data set once and report all problems.

    Args:
        name: A registered data set.
        directory: Directory of the data set.
        workers: Number of processes; by default one per core.
        started: Called once with the number of cases.
        progress: Called after every case.
    """
    dataset, directory = find_dataset(name), existing_directory(directory)
    inventory = dataset.inventory(directory)
    started(len(inventory.cases))
    checked = check_all(inventory.cases, dataset.check, workers=workers, progress=progress)
    problems, notes = dataset.conclude(checked)
    complete = replace(
        inventory, problems=[*inventory.problems, *problems], notes=[*inventory.notes, *notes]
    )
    return summarise(name, directory, complete, checked)


def draw_cases(name: str, cases: Cases, count: int, path: Path) -> list[str]:
    """Draw a few cases of an opened data set, evenly spread over it, into a PNG file.

    Args:
        name: Name of the data set, which decides how its cases are drawn.
        cases: The opened data set.
        count: Number of cases to draw; all of them if there are fewer.
        path: PNG file to write.

    Returns:
        Ids of the cases that were drawn.
    """
    import_extra("matplotlib", "pictures need matplotlib", "plot").use("agg")
    count = min(count, len(cases))
    samples = [cases[index * len(cases) // count] for index in range(count)]
    figure = find_dataset(name).draw(samples)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=80)
    return [sample["id"] for sample in samples]
