"""Classification of videos in folders by class: .avi and .mp4 files, or folders of frames.

Splits are folders `train` and `val` or `test` above the classes; where there are none, 5 folds
stratified by class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ranp.datasets import class_folders, frames, video
from ranp.datasets.class_folders import ClassReader, LabelledPath
from ranp.datasets.frames import DIVISOR
from ranp.datasets.pictures import draw_clips
from ranp.datasets.registry import Dataset, Facts, register_dataset
from ranp.datasets.synthetic.motion import MOTIONS, check_classes, draw_clip, render
from ranp.datasets.tasks import Classification
from ranp.datasets.verification import Inventory, checks
from ranp.errors import UsageError

FRAMES = 16
"""Frames of a sample."""

_SUFFIXES = (".avi", ".mp4")
_CLIP_FRAMES = 40
_MIN_FRAME = 32


@dataclass(frozen=True)
class ClipReader(ClassReader):
    """Reads clips: `x` [3, 16, S, S] minus the mean colour, and the class `y`.

    Training: 16 consecutive frames from a random place, multi-scale corner crop, mirrored half
    the time. Validation: the 16 frames in the middle, the square in the centre. Clips shorter
    than 16 frames are repeated from their beginning.

    Attributes:
        divisor: Divisor of the colours.
    """

    divisor: float = DIVISOR

    def read(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """Decode a window of a clip and cut a square out of it."""
        clip = self.cases[index]
        info = video.probe(clip.path)
        if self.training:
            start = frames.random_start(info.frames, FRAMES, rng)
            window = frames.multi_scale_corner(info.height, info.width, rng)
        else:
            start = frames.centre_start(info.frames, FRAMES)
            window = frames.centre_square(info.height, info.width)
        read = video.read_frames(clip.path, start, min(FRAMES, info.frames))
        square = frames.repeat_frames(frames.crop_and_resize(read, window, self.size), FRAMES)
        return {"x": frames.to_input(square, self.divisor), "y": clip.label}


def _is_clip(path: Path) -> bool:
    if path.is_dir():
        return any(frame.suffix.lower() in video.FRAME_SUFFIXES for frame in path.iterdir())
    return path.suffix.lower() in _SUFFIXES


def inventory(directory: Path) -> Inventory:
    """List the clips of a directory, by class."""
    expected = ".avi, .mp4 or folders of .jpg or .png frames"
    return class_folders.list_cases(directory, _is_clip, expected)


def open_reader(
    directory: Path, split: str, *, size: int = 112, fold: int = 0, divisor: float = DIVISOR
) -> ClipReader:
    """Open one split; `size` is the edge of the frames, `divisor` that of the colours."""
    clips = class_folders.choose_split(directory, inventory(directory).cases, split, fold)
    return ClipReader(clips, size, split == "train", divisor)


@checks(path=lambda clip: clip.path)
def check(clip: LabelledPath) -> Iterator[tuple[str, str]]:
    """Decode a whole clip and count its class, split and frame size."""
    yield from class_folders.count_case(clip)
    yield from check_frames(clip)


def check_frames(clip: LabelledPath) -> Iterator[tuple[str, str]]:
    """Decode a whole clip and count its frame size and whether it is short."""
    video.count_frames(clip.path)
    info = video.probe(clip.path)
    yield "frame size", f"{info.height}x{info.width}"
    if info.frames < FRAMES:
        yield "length", f"shorter than {FRAMES} frames"


def describe(directory: Path) -> Facts:
    """Probe all clips."""
    clips = inventory(directory).cases
    infos = [video.probe(clip.path) for clip in clips]
    shapes = np.array([(info.frames, info.height, info.width) for info in infos])
    length, height, width = (int(edge) for edge in np.median(shapes, axis=0))
    classes = max(clip.label for clip in clips) + 1
    size = min(112, max(16 * (min(height, width) // 16), 32))
    return Facts(3, classes, (length, height, width), len(clips), size)


def write(directory: Path, *, cases: int, size: int, seed: int, classes: int) -> None:
    """Write clips of motion in folders by class; frames are `size` high and a third wider."""
    check_clips(size, classes)
    for index in range(cases):
        name = MOTIONS[index % classes].name
        write_clip(directory / name / f"clip_{index:05d}.avi", index, size, seed, classes)


def check_clips(size: int, classes: int) -> None:
    """Raise `UsageError` for frames that the codec does not take, or too many classes."""
    if size < _MIN_FRAME or size % 2:
        raise UsageError(f"the height of frames must be even and at least {_MIN_FRAME}, got {size}")
    check_classes(classes)


def write_clip(path: Path, index: int, size: int, seed: int, classes: int) -> None:
    """Write clip `index` of the synthetic data set: 40 frames, 4:3 as in UCF101."""
    width = size * 4 // 3 // 2 * 2  # even, as the codec wants it
    video.write_video(path, render(draw_clip(classes, seed, index), _CLIP_FRAMES, size, width))


def sample(
    index: int, *, volume: tuple[int, int, int], seed: int, classes: int, divisor: float = DIVISOR
) -> dict[str, Any]:
    """Draw a clip's first frames: `x` [3, T, S, S] and its class `y`; the classes take turns."""
    check_classes(classes)
    rendered = render(draw_clip(classes, seed, index), *volume)
    return {"x": frames.to_input(rendered, divisor), "y": index % classes}


def with_divisor(dataset: Dataset, value: Any) -> Dataset:
    """Return the data set with colours divided by another number than 255."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"divisor must be a number above 0, such as 255 or 1, got {value!r}")
    return replace(
        dataset,
        open_reader=partial(dataset.open_reader, divisor=value),
        sample=partial(dataset.sample, divisor=value),
        predict=partial(dataset.predict, divisor=value),
        draw=partial(dataset.draw, divisor=value),
    )


CLIPS = register_dataset(
    Dataset(
        name="clips",
        about="any videos in folders by class",
        recipe="clips-mobilenetv2",
        size=112,
        task_name="classification",
        task=lambda window, metadata: Classification(),
        predict=partial(class_folders.predict_classes, ClipReader),
        draw=draw_clips,
        frames=FRAMES,
        classes=10,
        options={"divisor": with_divisor},
        inventory=inventory,
        check=check,
        open_reader=open_reader,
        write=write,
        sample=sample,
        describe=describe,
    )
)
