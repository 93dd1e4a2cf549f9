"""Classification of volumes: folders by class, or one .npz archive of arrays.

- Folders by class: .npy, .npz (one array) or .nii.gz files [D, H, W] or [C, D, H, W]; splits are
  folders `train` and `val` or `test` above the classes, else 5 folds stratified by class.
- An archive: `x` [N, D, H, W] or bit-packed occupancy grids `vox_packed` [N, D^3 / 8], with labels
  `y` and, where they are there, `class_names`, `ids` and `n_train`, the length of the training
  part; or `train_images`, `train_labels`, `val_images` and so on, as MedMNIST has them.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ranp.datasets import class_folders
from ranp.datasets.class_folders import ClassReader, LabelledPath
from ranp.datasets.crops import centre_corner, crop_or_pad, normalise
from ranp.datasets.nifti import read_volume
from ranp.datasets.parts import CATEGORIES
from ranp.datasets.pictures import draw_voxels, make_grid
from ranp.datasets.registry import Dataset, Facts, register_dataset
from ranp.datasets.splits import stratified_folds
from ranp.datasets.synthetic.shapes import draw_shape
from ranp.datasets.tasks import Classification
from ranp.datasets.verification import Inventory, check_range, checks
from ranp.datasets.voxels import check_size, voxelize
from ranp.errors import IntegrityError, UsageError
from ranp.files import atomic_write, blame_file

_SUFFIXES = (".npy", ".npz", ".nii", ".nii.gz")
# RuntimeError: flags of an entry that say it is encrypted, or of a kind that zipfile cannot read.
_ZIP_DAMAGE = (zlib.error, zipfile.BadZipFile, RuntimeError)
_DAMAGE = (OSError, EOFError, ValueError, KeyError, SyntaxError, *_ZIP_DAMAGE)
_NO_ARRAY = "is damaged or not an array"
_SPLITS = {"train": "train", "val": "validation", "test": "test"}
_MAX_BYTES, _MAX_RATIO = 512 * 2**20, 256  # a small file that claims more is a bomb


def read_array(path: Path) -> NDArray[Any]:
    """Read the only array of a .npy or .npz file.

    Raises:
        IntegrityError: The file is damaged, holds objects, or claims more than it can hold.
    """
    if path.suffix != ".npz":
        with blame_file(path, _DAMAGE, _NO_ARRAY), path.open("rb") as stream:
            return _read_npy(stream, path.stat().st_size)
    arrays = read_arrays(path)
    if len(arrays) != 1:
        raise IntegrityError(f"'{path}' holds {len(arrays)} arrays, not one")
    return next(iter(arrays.values()))


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of an .npz file; see `read_array`."""
    with blame_file(path, _DAMAGE, _NO_ARRAY), zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        claimed = sum(entry.file_size for entry in entries)
        if claimed > max(_MAX_BYTES, _MAX_RATIO * path.stat().st_size):
            raise IntegrityError(f"'{path}' claims to unpack to {claimed / 2**20:.0f} MiB")
        arrays = {}
        for entry in entries:
            with archive.open(entry) as stream:
                arrays[entry.filename.removesuffix(".npy")] = _read_npy(stream, entry.file_size)
        return arrays


def _read_npy(stream: BinaryIO | Any, stored: int) -> NDArray[Any]:
    """Read an array after its header was checked against the bytes that there are."""
    version = npy.read_magic(stream)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read_header(stream)
    expected = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "biufU" or any(length < 0 for length in shape) or expected > stored:
        raise ValueError(f"a header of {shape} numbers of type {dtype} over {stored} bytes")
    content = stream.read(expected + 1)  # to the end: that is where zipfile checks its CRC
    if len(content) != expected:
        raise ValueError(f"{len(content)} bytes where {expected} are claimed")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


@dataclass(frozen=True, eq=False)
class Archive:
    """Arrays of an .npz archive.

    `grids` are volumes [N, ...], or rows of packed bits [N, bytes] of cubes with an `edge`;
    `labels` are classes [N] from 0; where folds decide, splits are None.
    """

    grids: NDArray[Any]
    edge: int | None
    labels: NDArray[np.int64]
    names: Sequence[str]
    splits: Sequence[str | None]
    ids: Sequence[str]

    def volume(self, index: int) -> NDArray[Any]:
        """Return a volume, unpacked."""
        if self.edge is None:
            return np.asarray(self.grids[index])
        return np.unpackbits(self.grids[index])[: self.edge**3].reshape((self.edge,) * 3)


def open_archive(path: Path) -> Archive:
    """Read an archive; one that was read before and has not changed is kept."""
    state = path.stat()
    return read_archive(path, (state.st_size, state.st_mtime_ns))


@lru_cache(maxsize=2)
def read_archive(path: Path, state: tuple[int, int]) -> Archive:
    """Read an archive in a state of its file, which is its size and time.

    Raises:
        IntegrityError: It is damaged, or its arrays do not fit together.
    """
    arrays = read_arrays(path)
    parts = [name for name in _SPLITS if f"{name}_images" in arrays]
    splits: list[str | None] = []
    if parts:
        arrays["x"] = np.concatenate([arrays[f"{name}_images"] for name in parts])
        labels = [arrays.get(f"{name}_labels", np.empty(0)).reshape(-1) for name in parts]
        arrays["y"] = np.concatenate(labels)
        splits = [_SPLITS[name] for name in parts for _ in arrays[f"{name}_images"]]
    edge = None
    if "vox_packed" in arrays:
        edge = round((arrays["vox_packed"].shape[-1] * 8) ** (1 / 3))
        if arrays["vox_packed"].ndim != 2 or -(-(edge**3) // 8) != arrays["vox_packed"].shape[1]:
            raise IntegrityError(f"'{path}': rows of 'vox_packed' do not hold the bits of a cube")
    grids = arrays.get("vox_packed", arrays.get("x"))
    if grids is None or "y" not in arrays:
        raise IntegrityError(f"'{path}' needs 'x' or 'vox_packed', and 'y'; it has {list(arrays)}")
    y = arrays["y"].reshape(-1).astype(np.int64)
    if len(y) != len(grids) or not len(y) or not np.array_equal(y, arrays["y"].reshape(-1)):
        raise IntegrityError(f"'{path}' has {len(y)} whole labels for {len(grids)} volumes")
    names = arrays.get("class_names", np.arange(y.max() + 1)).astype(str).tolist()
    if y.min() < 0 or y.max() >= len(names):
        raise IntegrityError(f"'{path}' has labels {y.min()} to {y.max()} for {len(names)} classes")
    if "n_train" in arrays:
        border = int(arrays["n_train"])
        splits = ["train" if index < border else "test" for index in range(len(y))]
    ids = arrays.get("ids", np.arange(len(y))).astype(str).tolist()
    return Archive(grids, edge, y, names, splits or [None] * len(y), ids)


def inventory(directory: Path) -> Inventory:
    """List the volumes of a directory, by class."""
    archives = sorted(directory.glob("*.npz"))
    if len(archives) > 1:
        raise UsageError(f"'{directory}' holds {len(archives)} archives; name a directory with one")
    if not archives:
        return class_folders.list_cases(
            directory, lambda case: case.name.endswith(_SUFFIXES), ".npy, .npz or .nii.gz volumes"
        )
    [path] = archives
    archive = open_archive(path)
    strata = {f"{index}": archive.names[label] for index, label in enumerate(archive.labels)}
    folds = {} if archive.splits[0] else stratified_folds(strata)
    rows = zip(archive.ids, archive.labels.tolist(), archive.splits, strict=True)
    cases = [
        LabelledPath(id, path, label, archive.names[label], split, folds.get(str(index)), index)
        for index, (id, label, split) in enumerate(rows)
    ]
    return Inventory(cases)


def read_raw_grid(case: LabelledPath) -> NDArray[Any]:
    """Read a volume [C, D, H, W] as it is stored."""
    if case.index is not None:
        grid = open_archive(case.path).volume(case.index)
    elif case.path.suffix in (".npy", ".npz"):
        grid = read_array(case.path)
    else:
        grid = read_volume(case.path).data
    grid = grid[None] if grid.ndim == 3 else grid
    if grid.ndim != 4 or not grid.size:
        raise IntegrityError(f"'{case.path}' has a volume of shape {grid.shape}, not [D, H, W]")
    if not np.isfinite(grid).all():
        raise IntegrityError(f"'{case.path}' holds NaN or infinity")
    return grid


def read_grid(case: LabelledPath) -> NDArray[np.float32]:
    """Read a volume [C, D, H, W]: occupancy as it is, anything else as a z-score."""
    grid = read_raw_grid(case)
    if grid.dtype.kind == "b" or (grid.dtype.kind in "iu" and 0 <= grid.min() <= grid.max() <= 1):
        return grid.astype(np.float32)
    return np.stack([normalise(channel, np.ones(channel.shape, bool)) for channel in grid])


class GridReader(ClassReader):
    """Reads volumes in cubes: `x` [C, S, S, S] and the class `y`.

    Volumes are centred and padded with zeros or cropped; for training they are shifted at random
    by up to a sixteenth of the edge.
    """

    def read(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """Read a volume and bring it to the size of the cube."""
        grid = read_grid(self.cases[index])
        corner = np.array(centre_corner(grid.shape[1:], self.size))
        if self.training:
            corner += rng.integers(-(self.size // 16), self.size // 16 + 1, 3)
        x = crop_or_pad(grid, tuple(corner.tolist()), self.size)
        return {"x": x, "y": self.cases[index].label}


def open_reader(directory: Path, split: str, *, size: int = 32, fold: int = 0) -> GridReader:
    """Open one split; `size` is the edge of the cubes."""
    volumes = class_folders.choose_split(directory, inventory(directory).cases, split, fold)
    return GridReader(volumes, size, split == "train")


@checks(path=lambda volume: volume.path)
def check(volume: LabelledPath) -> Iterator[tuple[str, str]]:
    """Read a volume and count its class, split and shape."""
    grid = read_raw_grid(volume)
    check_range(volume.path, grid)
    yield from class_folders.count_case(volume)
    yield "shape", "x".join(map(str, grid.shape[1:]))


def describe(directory: Path) -> Facts:
    """Read up to 64 volumes, evenly spread."""
    volumes = inventory(directory).cases
    shapes = np.array([read_grid(volume).shape for volume in volumes[:: len(volumes) // 64 + 1]])
    channels, depth, height, width = (int(length) for length in np.median(shapes, axis=0))
    classes = max(volume.label for volume in volumes) + 1
    size = max(8 * -(-max(depth, height, width) // 8), 24)  # nothing is cut off
    return Facts(channels, classes, (depth, height, width), len(volumes), size)


def write(directory: Path, *, cases: int, size: int, seed: int, classes: int) -> None:
    """Write occupancy grids of synthetic shapes in folders by category."""
    check_size(size)
    _check_classes(classes)
    for index in range(cases):
        name = CATEGORIES[index % classes].name
        with atomic_write(directory / name / f"shape_{index:05d}.npy") as file:
            np.save(file, _draw(index, size, seed, classes).astype(np.uint8))


def _check_classes(classes: int) -> None:
    if not 1 <= classes <= len(CATEGORIES):
        raise UsageError(f"classes of shapes must be 1 to {len(CATEGORIES)}, got {classes}")


def _draw(index: int, size: int, seed: int, classes: int) -> NDArray[np.float32]:
    """Draw the occupancy of a shape [1, S, S, S]; the classes take turns."""
    shape = draw_shape(seed, index // classes * len(CATEGORIES) + index % classes)
    return voxelize(shape.points, shape.labels, size).occupancy()


def sample(index: int, *, volume: tuple[int, int, int], seed: int, classes: int) -> dict[str, Any]:
    """Draw an occupancy grid: `x` [1, S, S, S] and its class `y`."""
    _check_classes(classes)
    return {"x": _draw(index, volume[-1], seed, classes), "y": index % classes}


def draw(samples: Sequence[Mapping[str, Any]]) -> Any:
    """Draw occupancy as voxels, anything else as the slice in the middle."""
    figure, axes = make_grid(len(samples))
    for axis, shown in zip(axes, samples, strict=True):
        grid = shown["x"][0].numpy()
        if set(np.unique(grid)) <= {0.0, 1.0}:
            draw_voxels(axis, np.where(grid > 0, 0, -1))
        else:
            axis.imshow(grid[:, :, grid.shape[2] // 2].T, cmap="gray", origin="lower")
        axis.set_title(shown["id"], fontsize=7)
    return figure


register_dataset(
    Dataset(
        name="volumes",
        about="any volumes in folders by class or in an .npz archive",
        recipe="volumes-resnet3d",
        size=32,
        task_name="classification",
        task=lambda window, metadata: Classification(),
        predict=partial(class_folders.predict_classes, GridReader),
        classes=10,
        inventory=inventory,
        check=check,
        open_reader=open_reader,
        write=write,
        sample=sample,
        draw=draw,
        describe=describe,
    )
)
