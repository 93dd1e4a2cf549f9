"""UCF101: .avi clips in a tree by class or flat, and the official lists of three splits.

The lists (`ucfTrainTestlist/{trainlist,testlist}0{1,2,3}.txt`, `classInd.txt`) name clips as
`<Class>/v_<Class>_g<group>_c<clip>.avi`. Clips are found by file name, at any depth, whatever the
case of its letters: the class `HandstandPushups` has files `v_HandStandPushups...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ranp.datasets.frames import (
    centre_square,
    centre_start,
    cut,
    looped,
    multi_scale_corner,
    random_start,
    to_input,
)
from ranp.datasets.verification import Checked, Inventory, Problem, guarded, some
from ranp.datasets.verification import nothing_more as conclude
from ranp.datasets.video import count_frames, probe, read_frames
from ranp.errors import IntegrityError, UsageError

__all__ = ["ClipFile", "Ucf101Reader", "check", "conclude", "inventory", "open_reader"]

DEFAULT_SIZE = 112
FRAMES = 16
_LISTS = {"train": "trainlist", "validation": "testlist"}
_OFFICIAL_SPLITS = (1, 2, 3)


@dataclass(frozen=True)
class ClipFile:
    """A clip: its name, file, class, and what it is for in each official split.

    Attributes:
        id: The file's name without suffix, as the lists write it.
        path: The file.
        label: The class, from 0, in the order of `classInd.txt`.
        class_name: The class's name.
        splits: "train", "validation" or None for the official splits 1, 2, 3.
    """

    id: str
    path: Path
    label: int
    class_name: str
    splits: tuple[str | None, ...]


@dataclass(frozen=True)
class Ucf101Reader:
    """Reads clips: `x` [3, 16, S, S] minus the mean colour, and the class `y`.

    Training: 16 consecutive frames from a random place, multi-scale corner crop, mirrored half
    the time. Validation: the 16 frames in the middle, the square in the centre. Clips shorter
    than 16 frames are repeated from their beginning.
    """

    clips: tuple[ClipFile, ...]
    size: int
    training: bool

    @property
    def ids(self) -> Sequence[str]:
        """The clips' names."""
        return [clip.id for clip in self.clips]

    def read(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """Decodes a window of a clip and cuts a square out of it."""
        clip = self.clips[index]
        info = probe(clip.path)
        if self.training:
            start = random_start(info.frames, FRAMES, rng)
            window = multi_scale_corner(info.height, info.width, rng)
        else:
            start = centre_start(info.frames, FRAMES)
            window = centre_square(info.height, info.width)
        frames = read_frames(clip.path, start, min(FRAMES, info.frames))
        return {"x": to_input(looped(cut(frames, window, self.size), FRAMES)), "y": clip.label}


def open_reader(
    directory: Path, split: str, *, size: int = DEFAULT_SIZE, fold: int = 0
) -> Ucf101Reader:
    """Opens one split of a UCF101 directory.

    Args:
        directory: Holds the clips, at any depth, and `ucfTrainTestlist`.
        split: "train", or "validation" for the official test list.
        size: Edge of the frames: 112 for MobileNetV2, 224 for I3D.
        fold: The official split less one: 0, 1 or 2.
    """
    if split not in _LISTS:
        raise UsageError(f"UCF101 has no split '{split}'; it has {', '.join(_LISTS)}")
    if fold + 1 not in _OFFICIAL_SPLITS:
        raise UsageError(f"fold {fold} is not within 0 to 2, the three official splits")
    clips = [clip for clip in inventory(directory).cases if clip.splits[fold] == split]
    if not clips:
        raise UsageError(f"no clip of split '{split}' (list {fold + 1}) in '{directory}'")
    return Ucf101Reader(tuple(clips), size, split == "train")


def inventory(directory: Path) -> Inventory:
    """Lists the clips that are both in the lists and on disk; says which are not."""
    lists = directory / "ucfTrainTestlist"
    classes = _read_classes(lists / "classInd.txt")
    listed = _read_lists(lists, classes)
    files = sorted(p for p in directory.rglob("*.avi") if not p.name.startswith("."))
    by_name = {path.stem.lower(): path for path in files}
    clips = [
        ClipFile(name, by_name[name.lower()], classes[class_name], class_name, splits)
        for name, (class_name, splits) in listed.items()
        if name.lower() in by_name
    ]
    absent = [name for name in listed if name.lower() not in by_name]
    problems = (
        [Problem(lists.name, f"{some(absent)} listed but absent of {len(listed)}")]
        if absent
        else []
    )
    known = {name.lower() for name in listed}
    unlisted = [stem for stem in by_name if stem not in known]
    notes = [f"{some(unlisted)} in no list; skipped"] if unlisted else []
    return Inventory(clips, problems, notes)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("ascii").split("\n")
    except FileNotFoundError as error:
        raise UsageError(
            f"'{path}' does not exist; put UCF101's ucfTrainTestlist into the data directory"
        ) from error
    except ValueError as error:
        raise IntegrityError(f"'{path}' is no text file: {error}") from error


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


def check(clip: ClipFile) -> Checked:
    """Decodes a whole clip and counts its class, splits and frame size."""

    def read() -> Iterator[tuple[str, str]]:
        count_frames(clip.path)
        info = probe(clip.path)
        yield "class", clip.class_name
        for number, split in zip(_OFFICIAL_SPLITS, clip.splits, strict=True):
            yield f"split {number}", split or "unlisted"
        yield "frame size", f"{info.height}x{info.width}"
        if info.frames < FRAMES:
            yield "length", f"shorter than {FRAMES} frames"

    return guarded(clip.id, clip.path, lambda: list(read()))
