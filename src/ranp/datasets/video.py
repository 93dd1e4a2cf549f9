"""Videos and folders of frames, decoded with PyAV: counted, and read from the nearest key frame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ranp.errors import IntegrityError, UsageError, import_extra
from ranp.files import atomic_write, blame_file

_import_av = partial(import_extra, "av", "videos need PyAV", "video")
MAX_EDGE = 4096
"""The largest frame edge that is decoded; a damaged header can claim anything."""
MAX_FRAMES = 100_000
FRAME_SUFFIXES = (".jpg", ".jpeg", ".png")
"""Files of a folder that are its frames, in the order of their names."""


@dataclass(frozen=True)
class ClipInfo:
    """Header of a video."""

    frames: int
    height: int
    width: int


def probe(path: Path) -> ClipInfo:
    """Read a video's header, or the first frame of a folder.

    Raises:
        IntegrityError: The file is not a video, or its header is invalid.
    """
    if path.is_dir():
        frames = _frame_files(path)
        height, width, _ = _read_frame(frames[0]).shape
        return ClipInfo(len(frames), height, width)
    with _opened(path) as (_, stream):
        return ClipInfo(int(stream.frames), int(stream.height), int(stream.width))


def read_frames(path: Path, start: int, count: int) -> NDArray[np.uint8]:
    """Decode consecutive RGB frames [count, H, W, 3], all of which must exist.

    Decoding begins at the last key frame before them. Where frames are stored out of order
    (B-frames), an .avi does not say which frame a seek leads to, and in other containers frames
    need not be evenly spaced, so that decoding begins at the first one. It ends after the last
    frame asked for in either case.
    """
    if path.is_dir():
        files = _frame_files(path)
        _require_within(path, start, count, len(files))
        pictures = [_read_frame(file) for file in files[start : start + count]]
        if len({picture.shape for picture in pictures}) != 1:
            raise IntegrityError(f"'{path}' is damaged: its frames change size")
        return np.stack(pictures)
    with _opened(path) as (container, stream):
        _require_within(path, start, count, stream.frames)
        ordered = not stream.codec_context.has_b_frames and container.format.name == "avi"
        if ordered:
            stamp = int(start / stream.average_rate / stream.time_base)
            container.seek(stamp, stream=stream, backward=True)
        frames: list[NDArray[np.uint8]] = []
        number = -1
        for frame in container.decode(stream):
            time = -1 if frame.pts is None else frame.pts * stream.time_base * stream.average_rate
            stamp = round(time)
            number = stamp if ordered and number < 0 else number + 1
            if frame.is_corrupt or (ordered and stamp != number):
                raise IntegrityError(f"'{path}' is damaged at frame {number}")
            if number >= start:
                _check_frame(path, frame, stream)
                frames.append(np.asarray(frame.to_ndarray(format="rgb24"), np.uint8))
            if len(frames) == count:
                return np.stack(frames)
        raise IntegrityError(
            f"'{path}' claims {stream.frames} frames but ends after {number + 1}; fetch it again"
        )


def _require_within(path: Path, start: int, count: int, total: int) -> None:
    if not 0 <= start <= start + count <= total:
        raise UsageError(f"'{path}' has {total} frames, not {start} to {start + count}")


def _frame_files(folder: Path) -> list[Path]:
    frames = sorted(p for p in folder.iterdir() if p.suffix.lower() in FRAME_SUFFIXES)
    if not 0 < len(frames) <= MAX_FRAMES:
        raise IntegrityError(f"'{folder}' has {len(frames)} frames")
    return frames


def _read_frame(path: Path) -> NDArray[np.uint8]:
    with _opened(path, "picture") as (container, stream):
        (frame,) = container.decode(stream)
        if frame.is_corrupt:
            raise IntegrityError(f"'{path}' is damaged; fetch it again")
        return np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)


def count_frames(path: Path) -> int:
    """Decode a whole video and return its number of frames, which must be what it claims.

    Raises:
        IntegrityError: A packet cannot be decoded, or frames are missing or too many.
    """
    if path.is_dir():
        return len(read_frames(path, 0, len(_frame_files(path))))
    with _opened(path) as (container, stream):
        claimed, counted = int(stream.frames), 0
        for frame in container.decode(stream):
            _check_frame(path, frame, stream)
            if frame.is_corrupt:
                raise IntegrityError(f"'{path}' is damaged: frame {counted} is corrupt")
            counted += 1
        if counted != claimed:
            raise IntegrityError(f"'{path}' claims {claimed} frames but {counted} can be decoded")
        return counted


@contextmanager
def _opened(path: Path, what: Literal["video", "picture"] = "video") -> Iterator[tuple[Any, Any]]:
    """Yield a file's container and its only video stream; turn FFmpeg's errors into ours."""
    av = _import_av()
    damage = (av.FFmpegError, OSError, ValueError, EOFError, MemoryError)
    with (
        blame_file(path, damage, f"is damaged or not a {what}", "; fetch it again"),
        path.open("rb") as file,  # not by name: FFmpeg would take some for URLs or patterns
        av.open(file, mode="r") as container,
    ):
        if len(container.streams.video) != 1:
            raise IntegrityError(
                f"'{path}' has {len(container.streams.video)} video streams, not one"
            )
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise IntegrityError(f"'{path}' is damaged, or of a codec that FFmpeg lacks")
        stream.codec_context.thread_count = 1  # the loader's workers are the parallelism
        if not (0 < stream.width <= MAX_EDGE and 0 < stream.height <= MAX_EDGE):
            raise IntegrityError(f"'{path}' claims frames of {stream.width}x{stream.height}")
        if what == "video" and not 0 < stream.frames <= MAX_FRAMES:
            raise IntegrityError(f"'{path}' claims {stream.frames} frames")
        stream.codec_context.options = {"err_detect": "explode"}  # conceal nothing
        yield container, stream


def _check_frame(path: Path, frame: Any, stream: Any) -> None:
    if (frame.width, frame.height) != (stream.width, stream.height):
        raise IntegrityError(f"'{path}' is damaged: its frames change size")


def write_video(path: Path, frames: NDArray[np.uint8]) -> None:
    """Write RGB frames [T, H, W, 3] as an .avi in MPEG-4, the format of UCF101."""
    av = _import_av()
    with atomic_write(path) as file, av.open(file, mode="w", format="avi") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.codec_tag = "XVID"
        stream.codec_context.gop_size = 12
        stream.codec_context.thread_count = 1  # slices, and so the bytes, depend on it
        stream.codec_context.qmin = stream.codec_context.qmax = 3
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
