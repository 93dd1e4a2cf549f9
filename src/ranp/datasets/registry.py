"""The kinds of data sets: what they are called, and where their reader and generator live.

Importing this module does not import torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from ranp.datasets.verification import Checked, Inventory, Problem, Report, check_all, summarise
from ranp.errors import UsageError, suggest

if TYPE_CHECKING:
    from ranp.datasets.cases import Cases, Reader


class Format(Protocol):
    """What the module of a kind offers."""

    DEFAULT_SIZE: int

    def inventory(self, directory: Path) -> Inventory:
        """Lists the cases of a directory without reading them."""

    def check(self, case: Any) -> Checked:
        """Reads one case of the inventory and says what is wrong with it."""

    def conclude(self, checked: Sequence[Checked]) -> tuple[list[Problem], list[str]]:
        """Problems and notes that show only when all cases are seen together."""

    def open_reader(
        self, directory: Path, split: str, *, size: int, fold: int, **options: Any
    ) -> Reader:
        """Opens one split."""


@dataclass(frozen=True)
class Kind:
    """A kind of data set.

    Attributes:
        name: What commands call it.
        module: Reads it; see `Format`.
        write: `module:function` that writes a synthetic one.
    """

    name: str
    module: str
    write: str

    @property
    def format(self) -> Format:
        """The module that reads this kind."""
        return cast(Format, importlib.import_module(self.module))

    @property
    def writer(self) -> Callable[..., None]:
        """The function that writes a synthetic data set: (directory, cases, size, seed)."""
        module, function = self.write.split(":")
        return cast(Callable[..., None], getattr(importlib.import_module(module), function))


_WRITERS = "ranp.datasets.synthetic.writers"
KINDS = {
    kind.name: kind
    for kind in (
        Kind("shapenet", "ranp.datasets.shapenet", f"{_WRITERS}:write_shapenet"),
        Kind("brats", "ranp.datasets.brats", f"{_WRITERS}:write_brats"),
        Kind("ucf101", "ranp.datasets.ucf101", f"{_WRITERS}:write_ucf101"),
        Kind("hippocampus", "ranp.datasets.hippocampus", f"{_WRITERS}:write_hippocampus"),
    )
}


def kind_named(name: str) -> Kind:
    """The kind of a name, or an error that suggests one."""
    if name not in KINDS:
        raise UsageError(f"unknown kind of data '{name}'.{suggest(name, KINDS)}")
    return KINDS[name]


def _existing(directory: str | Path) -> Path:
    directory = Path(directory)
    if not directory.is_dir():
        raise UsageError(f"data directory '{directory}' does not exist")
    return directory


def open_cases(
    kind: str,
    directory: str | Path,
    split: str,
    *,
    size: int | None = None,
    fold: int = 0,
    seed: int = 0,
    cache: str | Path | None = None,
) -> Cases:
    """Opens one split of a data set on disk.

    Args:
        kind: "shapenet", "brats", "ucf101" or "hippocampus".
        directory: Where it lies.
        split: "train", "validation" or, for ShapeNet, "test".
        size: Edge of grids, crops or frames; by default 64, 128, 112 or 64.
        fold: Which fold validates (BraTS, hippocampus), or the official split less one (UCF101).
        seed: Decides crops, flips and the order of training.
        cache: Where to keep the voxel grids of ShapeNet; the other kinds have none.
    """
    if cache is not None and kind != "shapenet":
        raise UsageError(f"voxel grids of shapenet can be cached, {kind} cannot")
    format = kind_named(kind).format
    size = format.DEFAULT_SIZE if size is None else size
    options: dict[str, Any] = {} if cache is None else {"cache": Path(cache)}
    reader = format.open_reader(_existing(directory), split, size=size, fold=fold, **options)
    from ranp.datasets.cases import Cases  # torch takes seconds: first see whether there is a need

    return Cases(reader, seed)


def verify(
    kind: str,
    directory: str | Path,
    *,
    workers: int | None = None,
    started: Callable[[int], None] = lambda total: None,
    progress: Callable[[], None] = lambda: None,
) -> Report:
    """Reads every case of a data set once and reports all problems.

    Args:
        kind: As for `open_cases`.
        directory: Where it lies.
        workers: Processes; by default one per core.
        started: Called once with the number of cases.
        progress: Called after every case.
    """
    format = kind_named(kind).format
    directory = _existing(directory)
    inventory = format.inventory(directory)
    started(len(inventory.cases))
    checked = check_all(inventory.cases, format.check, workers=workers, progress=progress)
    problems, notes = format.conclude(checked)
    complete = Inventory(
        inventory.cases, [*inventory.problems, *problems], [*inventory.notes, *notes]
    )
    return summarise(kind, directory, complete, checked)


def synthesise(
    kind: str,
    directory: str | Path,
    *,
    cases: int,
    size: int,
    seed: int,
    classes: int | None = None,
) -> None:
    """Writes a synthetic data set in a kind's real format.

    Args:
        kind: As for `open_cases`.
        directory: A new or empty directory.
        cases: Number of cases.
        size: Edge of volumes and frames; for shapes, which are points, it has no effect.
        seed: The same seed gives the same files.
        classes: Number of classes of clips, 10 by default; the other kinds have no choice.
    """
    if classes is not None and kind != "ucf101":
        raise UsageError(f"the number of classes can be chosen for ucf101 alone, not for {kind}")
    directory = Path(directory)
    if directory.is_dir() and any(directory.iterdir()):
        raise UsageError(f"'{directory}' is not empty; choose a new directory")
    if cases < 1:
        raise UsageError(f"{cases} cases: at least one is needed")
    chosen = {} if classes is None else {"classes": classes}
    kind_named(kind).writer(directory, cases=cases, size=size, seed=seed, **chosen)
