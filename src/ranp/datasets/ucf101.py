"""UCF101: .avi clips in a tree by class or flat, and the official lists of three splits.

The lists (`ucfTrainTestlist/{trainlist,testlist}0{1,2,3}.txt`, `classInd.txt`) name clips as
`<Class>/v_<Class>_g<group>_c<clip>.avi`. Clips are found by file name, at any depth, whatever the
case of its letters: the class `HandstandPushups` has files `v_HandStandPushups...`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ranp.datasets.class_folders import LabelledPath
from ranp.datasets.clips import CLIPS, ClipReader, check_clips, check_frames, write_clip
from ranp.datasets.frames import DIVISOR
from ranp.datasets.registry import register_dataset
from ranp.datasets.synthetic.motion import MOTIONS
from ranp.datasets.verification import Inventory, Problem, abbreviate, checks
from ranp.errors import IntegrityError, UsageError
from ranp.files import write_text

_LISTS = {"train": "trainlist", "validation": "testlist"}
_OFFICIAL_SPLITS = (1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class ClipFile(LabelledPath):
    """A clip, by its name in the lists; classes are in the order of `classInd.txt`.

    Attributes:
        splits: "train", "validation" or None for the official splits 1, 2, 3.
    """

    splits: tuple[str | None, ...]


def open_reader(
    directory: Path, split: str, *, size: int = 112, fold: int = 0, divisor: float = DIVISOR
) -> ClipReader:
    """Open "train", or "validation" for the test list, of the official split `fold` + 1."""
    if split not in _LISTS:
        raise UsageError(f"UCF101 has no split '{split}'; it has {', '.join(_LISTS)}")
    if fold + 1 not in _OFFICIAL_SPLITS:
        raise UsageError(f"fold must be 0 to 2, the three official splits, got {fold}")
    clips = [clip for clip in inventory(directory).cases if clip.splits[fold] == split]
    if not clips:
        raise UsageError(f"no clip of split '{split}' (list {fold + 1}) in '{directory}'")
    return ClipReader(tuple(clips), size, split == "train", divisor)


def inventory(directory: Path) -> Inventory:
    """List the clips that are both in the lists and on disk; say which are not."""
    lists = directory / "ucfTrainTestlist"
    classes = _read_classes(lists / "classInd.txt")
    listed = _read_lists(lists, classes)
    files = sorted(p for p in directory.rglob("*.avi") if not p.name.startswith("."))
    by_name = {path.stem.lower(): path for path in files}
    clips = [
        ClipFile(name, by_name[name.lower()], classes[class_name], class_name, splits=splits)
        for name, (class_name, splits) in listed.items()
        if name.lower() in by_name
    ]
    absent = [name for name in listed if name.lower() not in by_name]
    problems = (
        [Problem(lists.name, f"{abbreviate(absent)} listed but absent of {len(listed)}")]
        if absent
        else []
    )
    known = {name.lower() for name in listed}
    unlisted = [stem for stem in by_name if stem not in known]
    notes = [f"{abbreviate(unlisted)} in no list; skipped"] if unlisted else []
    return Inventory(clips, problems, notes)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("ascii").split("\n")
    except FileNotFoundError as error:
        raise UsageError(
            f"'{path}' does not exist; put UCF101's ucfTrainTestlist into the data directory"
        ) from error
    except ValueError as error:
        raise IntegrityError(f"'{path}' is not a text file: {error}") from error


def _read_classes(path: Path) -> dict[str, int]:
    """Class name to label, from 0."""
    classes = {}
    for line in _read_lines(path):
        fields = line.split()
        if fields:
            if len(fields) != 2 or not fields[0].isdigit():
                raise IntegrityError(f"'{path}' has the line '{line}', not '<number> <class>'")
            classes[fields[1]] = int(fields[0]) - 1
    return classes


def _read_lists(
    folder: Path, classes: dict[str, int]
) -> dict[str, tuple[str, tuple[str | None, ...]]]:
    """Clip name to its class and its role in each of the three official splits."""
    roles: dict[str, tuple[str, list[str | None]]] = {}
    for number in _OFFICIAL_SPLITS:
        for split, stem in _LISTS.items():
            path = folder / f"{stem}{number:02d}.txt"
            for line in filter(str.strip, _read_lines(path)):
                class_name, _, file_name = line.split()[0].partition("/")
                if class_name not in classes:
                    raise IntegrityError(f"'{path}' names the unknown class '{class_name}'")
                name = file_name.removesuffix(".avi")
                role = roles.setdefault(name, (class_name, [None] * len(_OFFICIAL_SPLITS)))
                if role[1][number - 1] not in (None, split):
                    raise IntegrityError(f"clip '{name}' is in both lists of split {number}")
                role[1][number - 1] = split
    return {name: (class_name, tuple(splits)) for name, (class_name, splits) in roles.items()}


@checks(path=lambda clip: clip.path)
def check(clip: ClipFile) -> Iterator[tuple[str, str]]:
    """Decode a whole clip and count its class, splits and frame size."""
    yield "class", clip.class_name
    for number, split in zip(_OFFICIAL_SPLITS, clip.splits, strict=True):
        yield f"split {number}", split or "unlisted"
    yield from check_frames(clip)


def write(directory: Path, *, cases: int, size: int, seed: int, classes: int) -> None:
    """Write clips of motion in a tree by class, with class index and lists of three splits.

    The clips take turns in class, up to 101 of them. In split k every fourth clip of a class, from
    the k-th on, is for testing.
    """
    check_clips(size, classes)
    clips = []
    for index in range(cases):
        label, number = index % classes, index // classes
        name = MOTIONS[label].name
        clips.append((f"{name}/v_{name}_g{number + 1:02d}_c01.avi", label, number))
        write_clip(directory / clips[-1][0], index, size, seed, classes)
    folder = directory / "ucfTrainTestlist"
    names = [f"{label + 1} {MOTIONS[label].name}" for label in range(classes)]
    write_text(folder / "classInd.txt", "\n".join(names) + "\n")
    for split in _OFFICIAL_SPLITS:
        train = [f"{clip} {label + 1}" for clip, label, number in clips if number % 4 != split]
        test = [clip for clip, _, number in clips if number % 4 == split]
        write_text(folder / f"trainlist{split:02d}.txt", "\n".join(sorted(train)) + "\n")
        write_text(folder / f"testlist{split:02d}.txt", "\n".join(sorted(test)) + "\n")


register_dataset(
    replace(
        CLIPS,
        name="ucf101",
        about="UCF101, human actions in video, with its official splits",
        recipe="ucf101-mobilenetv2",
        describe=None,
        inventory=inventory,
        check=check,
        open_reader=open_reader,
        write=write,
    )
)
