"""NIfTI volumes, read without trust in what they claim.

The header is checked before memory is taken, and the stream is read to its end so that gzip's CRC
is checked too. nibabel does neither; it interprets the header.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranp.errors import IntegrityError, import_extra
from ranp.files import atomic_write, blame_file

MAX_BYTES = 96 * 2**20
"""Unpacked size that any file may claim: BraTS in float64 has 68 MiB, a bomb has more."""

# A larger volume must have bytes to show for it: MR and CT images pack to 1/2 to 1/20.
_MAX_RATIO = 64
_import_nibabel = partial(import_extra, "nibabel", "NIfTI volumes need nibabel", "medical")
_HEADER_BYTES = 348
_MAX_OFFSET = 2**20  # where voxels may begin at the latest: header extensions are small
_MAX_DEFLATE_RATIO = 1032  # no deflate stream can unpack to more


@dataclass(frozen=True)
class Volume:
    """Voxels [X, Y, Z] as stored (scaled if the header says so) and where they lie."""

    data: NDArray[Any]
    affine: NDArray[np.float64]


def read_volume(path: Path, *, channels: int = 1, believable: int = MAX_BYTES) -> Volume:
    """Read a volume from a .nii or .nii.gz file.

    Args:
        path: The file.
        channels: Length of the fourth dimension; with 1 the volume is 3D.
        believable: Unpacked size in bytes that the file may claim, whatever its own size.

    Raises:
        IntegrityError: The file is damaged, truncated, not NIfTI, of another dimension, too large,
            or holds NaN or infinity. The message names the file.
    """
    with _opened(path, believable) as (stream, bound):
        header = _read_header(path, stream.read(_HEADER_BYTES))
        dtype = header.get_data_dtype()
        shape, affine = _checked_shape(path, header, channels, bound), _checked_affine(path, header)
        expected = math.prod(shape) * dtype.itemsize
        offset = float(header["vox_offset"])
        if not (offset.is_integer() and _HEADER_BYTES <= offset <= _MAX_OFFSET):
            raise IntegrityError(f"'{path}' claims that its voxels begin at byte {offset:g}")
        stream.read(int(offset) - _HEADER_BYTES)

        buffer = bytearray(expected)
        view, filled = memoryview(buffer), 0
        while filled < expected:
            got = stream.readinto(view[filled : filled + 2**20])
            if not got:
                raise IntegrityError(
                    f"'{path}' is truncated: {filled} of {expected} bytes of voxels"
                )
            filled += got
        if stream.read(1):  # reaching the end is also what makes gzip check its CRC
            raise IntegrityError(f"'{path}' holds more bytes than its header says")
    data = np.frombuffer(buffer, dtype).reshape(shape, order="F")
    return Volume(_scaled(path, data, header), affine)


def read_shape(path: Path) -> tuple[int, ...]:
    """Read the shape of a 3D volume from its header alone."""
    with _opened(path) as (stream, bound):
        return _checked_shape(path, _read_header(path, stream.read(_HEADER_BYTES)), 1, bound)


@contextmanager
def _opened(path: Path, believable: int = MAX_BYTES) -> Iterator[tuple[Any, int]]:
    """Yield the unpacked stream, and how many bytes of voxels the file may claim."""
    damage = (OSError, EOFError, zlib.error)  # what gzip raises on a damaged stream
    with blame_file(path, damage, "is damaged", "; fetch it again"), path.open("rb") as raw:
        stored = path.stat().st_size
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        most = min(max(believable, stored * _MAX_RATIO), stored * _MAX_DEFLATE_RATIO)
        with gzip.open(raw) if compressed else nullcontext(raw) as stream:
            yield stream, most if compressed else stored


def _read_header(path: Path, raw: bytes) -> Any:
    nibabel = _import_nibabel()
    if len(raw) < _HEADER_BYTES:
        raise IntegrityError(f"'{path}' is not a NIfTI volume: {len(raw)} bytes, no whole header")
    try:
        header = nibabel.Nifti1Header(raw, check=False)
        header.get_data_dtype()
    except Exception as error:  # nibabel raises KeyError, ValueError and its own types here
        raise IntegrityError(f"'{path}' has a damaged NIfTI header: {error}") from error
    if int(header["sizeof_hdr"]) != _HEADER_BYTES or header["magic"].item() != b"n+1":
        raise IntegrityError(f"'{path}' is not a NIfTI-1 volume")
    dtype = header.get_data_dtype()
    if dtype.kind not in "iuf" or dtype.itemsize > 8 or int(header["bitpix"]) != dtype.itemsize * 8:
        raise IntegrityError(f"'{path}' has voxels of type {dtype}, which is not supported")
    return header


def _checked_affine(path: Path, header: Any) -> NDArray[np.float64]:
    try:
        affine = np.asarray(header.get_best_affine(), float)
    except Exception as error:  # an invalid quaternion, and whatever else nibabel computes with
        raise IntegrityError(f"'{path}' has a damaged NIfTI header: {error}") from error
    if not np.isfinite(affine).all():
        raise IntegrityError(f"'{path}' has an affine that is not finite")
    return affine


def _checked_shape(path: Path, header: Any, channels: int, bound: int) -> tuple[int, ...]:
    dims = [int(d) for d in header["dim"]]
    count, lengths = dims[0], dims[1:]
    space = 3 if channels == 1 else 4
    if (
        not space <= count <= 7
        or min(lengths[:count]) < 1
        or max(lengths[space:count], default=1) > 1
    ):
        wanted = "three" if channels == 1 else f"three and {channels} channels"
        raise IntegrityError(f"'{path}' has dimensions {lengths[: max(count, 0)]}, not {wanted}")
    if channels > 1 and lengths[3] != channels:
        raise IntegrityError(f"'{path}' has {lengths[3]} channels, not {channels}")
    shape = tuple(lengths[:space])
    expected = math.prod(shape) * header.get_data_dtype().itemsize
    if expected > bound:
        raise IntegrityError(
            f"'{path}' claims {'x'.join(map(str, shape))} voxels, {expected / 2**20:.0f} MiB; "
            f"at most {bound / 2**20:.0f} MiB are believable for this file"
        )
    return shape


def _scaled(path: Path, data: NDArray[Any], header: Any) -> NDArray[Any]:
    slope, intercept = float(header["scl_slope"]), float(header["scl_inter"])
    if math.isnan(slope) or slope == 0.0:  # the standard's way to say: no scaling
        slope, intercept = 1.0, 0.0
    if not (math.isfinite(slope) and math.isfinite(intercept)):
        raise IntegrityError(f"'{path}' has a scale of {slope} and an offset of {intercept}")
    if (slope, intercept) != (1.0, 0.0):
        data = (data * slope + intercept).astype(np.float32)
    wrong = int((~np.isfinite(data)).sum()) if data.dtype.kind == "f" else 0
    if wrong:
        raise IntegrityError(f"'{path}' holds {wrong} voxels that are NaN or infinite")
    return data


def read_labels(path: Path, like: Volume | None = None) -> Volume:
    """Read a label volume, whose voxels must be whole numbers from 0 to 255, as uint8.

    Labels may be as large as the image of the same case (`like`), however well they are packed.
    """
    believable = 0 if like is None else 8 * math.prod(like.data.shape[:3])
    volume = read_volume(path, believable=max(believable, MAX_BYTES))
    labels = volume.data.astype(np.uint8)
    if not np.array_equal(labels, volume.data):
        raise IntegrityError(f"'{path}' holds labels that are not whole numbers from 0 to 255")
    return Volume(labels, volume.affine)


def check_same_geometry(paths: Sequence[Path], volumes: Sequence[Volume]) -> None:
    """Raise `IntegrityError` if volumes differ from the first in shape, or in place by 1e-3 mm."""
    first = volumes[0]
    for path, volume in zip(paths[1:], volumes[1:], strict=True):
        is_same = volume.data.shape[:3] == first.data.shape[:3]
        if not is_same or not np.allclose(volume.affine, first.affine, rtol=0, atol=1e-3):
            raise IntegrityError(
                f"'{path}' and '{paths[0].name}' differ in geometry: "
                f"{volume.data.shape} and {first.data.shape} voxels, or their affines"
            )


def write_volume(path: Path, data: NDArray[Any], affine: NDArray[np.float64]) -> None:
    """Write a .nii.gz file; equal volumes give equal bytes."""
    image = _import_nibabel().Nifti1Image(data, affine)
    image.header.set_xyzt_units("mm")
    with atomic_write(path) as file:
        file.write(gzip.compress(image.to_bytes(), compresslevel=4, mtime=0))
