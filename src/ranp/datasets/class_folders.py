"""Cases in folders by class: `<class>/<case>`, or `train/<class>/<case>` and `val` or `test`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ranp.datasets.registry import CaseReader, Metadata, Predictor
from ranp.datasets.splits import in_split, stratified_folds
from ranp.datasets.tasks import top_classes
from ranp.datasets.verification import Inventory, Problem, visible
from ranp.errors import UsageError
from ranp.files import write_text

_SPLITS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}


@dataclass(frozen=True)
class LabelledPath:
    """A case in a folder by class.

    Attributes:
        id: Path below the data set's directory, without suffix.
        path: File or folder of the case.
        label: Class, from 0, in the alphabetical order of the folders.
        class_name: Name of the class's folder.
        split: Split by folder; None where folds decide.
        fold: Fold that it validates in; None where folders decide.
        index: Entry of an archive, where the path is one.
    """

    id: str
    path: Path
    label: int
    class_name: str
    split: str | None = None
    fold: int | None = None
    index: int | None = None


@dataclass(frozen=True)
class ClassReader(CaseReader):
    """Base of readers of cases with a class.

    Attributes:
        training: Whether to cut at random.
    """

    training: bool

    @property
    def metadata(self) -> Metadata:
        """Names of the classes."""
        return {"classes": {str(case.label): case.class_name for case in self.cases}}


def list_cases(directory: Path, is_case: Callable[[Path], bool], expected: str) -> Inventory:
    """List cases by class; any other file is a problem, which says what was `expected`."""
    parts = [path for path in visible(directory) if path.is_dir() and path.name in _SPLITS]
    splits: list[tuple[Path, str | None]] = [(path, _SPLITS[path.name]) for path in parts]
    splits = splits or [(directory, None)]
    folders = [(f, split) for root, split in splits for f in visible(root) if f.is_dir()]
    names = sorted({folder.name for folder, _ in folders})
    cases, problems = [], []
    seen: dict[Path, Path] = {}
    for folder, split in folders:
        for path in visible(folder):
            if not is_case(path):
                problems.append(Problem(str(path), f"a foreign file; expected {expected}"))
                continue
            stem = path.name if path.is_dir() else Path(path.name.removesuffix(".gz")).stem
            first = seen.setdefault(folder / stem, path)
            if first != path:
                problems.append(Problem(str(path), f"a second file of the case {first.name}"))
                continue
            name = path.name if path.is_dir() else path.name.split(".")[0]
            id = (folder.relative_to(directory) / name).as_posix()
            cases.append(LabelledPath(id, path, names.index(folder.name), folder.name, split))
    if not cases and not problems:
        raise UsageError(f"'{directory}' holds no folders by class with {expected}")
    if not parts:
        folds = stratified_folds({case.id: case.class_name for case in cases})
        cases = [replace(case, fold=folds[case.id]) for case in cases]
    empty = sorted(set(names) - {case.class_name for case in cases})
    return Inventory(cases, problems, [f"class {name}: no case" for name in empty])


def choose_split(
    directory: Path, cases: Sequence[LabelledPath], split: str, fold: int
) -> tuple[LabelledPath, ...]:
    """Return the cases of a split, by folder or by fold.

    With folders `train` and `test` alone, `test` is what validates.

    Raises:
        UsageError: There is none.
    """
    by_folder = {case.split for case in cases if case.split}
    if by_folder and fold != 0:
        raise UsageError(f"'{directory}' is split by folders; fold {fold} does not exist")
    if split == "validation" and by_folder and split not in by_folder:
        split = "test"
    chosen = tuple(
        case
        for case in cases
        if (case.split == split if case.split else in_split(case.fold, split, fold))
    )
    if not chosen:
        raise UsageError(f"no case of split '{split}' in '{directory}'")
    return chosen


def count_case(case: LabelledPath) -> Iterator[tuple[str, str]]:
    """Count the class and the split or fold of a case."""
    yield "class", case.class_name
    yield ("split", case.split) if case.split else ("fold", str(case.fold))


def predict_classes(
    reader: Callable[..., ClassReader],
    network: Predictor,
    source: Path,
    target: Path,
    *,
    size: int,
    metadata: Metadata,
    category: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Predict an input by a reader; write its five likeliest classes (see `Dataset.predict`)."""
    case = LabelledPath(source.name, source, label=0, class_name="")
    x = reader((case,), size, training=False, **options).read(0, np.random.default_rng(0))["x"]
    top = top_classes(network(x), metadata.get("classes", {}))
    write_text(target, json.dumps(top, indent=1) + "\n")
    return {"top5": top}
