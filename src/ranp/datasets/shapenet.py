"""The ShapeNet part data set in the three layouts that are in use.

- `challenge` (ICCV 2017): `{train,val,test}_data/<synset>/*.pts`, `{...}_label/<synset>/*.seg`
- `v0`: `<synset>/points/*.pts` and `<synset>/points_label/*.seg`
- `normal` (v0 with normals): `<synset>/*.txt`, rows x y z nx ny nz label

Labels are 1-based within the category in .seg and global from 0 to 49 in .txt; here they are
global. Splits: from `train_test_split/*.json` where there is one, else by MD5 (see `md5_split`).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranp.datasets import parts
from ranp.datasets.parts import BY_NAME, BY_SYNSET, CATEGORIES, PARTS, Category, category_named
from ranp.datasets.registry import CaseReader, Dataset, Predictor, register_dataset
from ranp.datasets.synthetic.shapes import draw_shape
from ranp.datasets.verification import (
    Inventory,
    Problem,
    abbreviate,
    check_range,
    checks,
    files_by_stem,
    visible,
)
from ranp.datasets.voxels import Voxels, check_size, voxel_positions, voxelize
from ranp.errors import IntegrityError, UsageError
from ranp.files import atomic_write, blame_file, write_text

SPLITS = ("train", "validation", "test")
_CHALLENGE = ("train", "val", "test")  # the same in names of folders and lists
_MAX_BYTES = 16 * 2**20  # a shape of 3,000 points has 200 kB; whatever is larger is foreign


@dataclass(frozen=True)
class ShapeFiles:
    """Files of a shape.

    Attributes:
        id: `<synset>/<name>`.
        points: The .pts or .txt file.
        labels: The .seg file; equal to `points` in the layout `normal`; None if it is absent.
        splits: The splits by list or folder; empty where the MD5 decides. More than one is
            possible: the official lists have 35 shapes in two of them.
    """

    id: str
    points: Path
    labels: Path | None
    splits: tuple[str, ...]

    @property
    def category(self) -> Category:
        """Category, by its synset."""
        return BY_SYNSET[self.id.split("/", 1)[0]]


def md5_split(content: bytes) -> str:
    """Return the paper's split of the challenge's train + val: by the first hex digit of the MD5.

    0 to 7 is for training, 8 to f for validation. Taken of the .pts file's content.
    """
    first_byte = hashlib.md5(content, usedforsecurity=False).digest()[0]
    return "train" if first_byte < 0x80 else "validation"


def splits_of(shape: ShapeFiles) -> tuple[str, ...]:
    """Return the splits a shape belongs to; one, unless the lists say otherwise."""
    return shape.splits or (md5_split(shape.points.read_bytes()),)


def read_points(shape: ShapeFiles) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read a shape's points [N, 3] and global part labels [N].

    Raises:
        IntegrityError: A file is damaged, lengths differ, a number is not finite, or a label is
            not one of the category's.
    """
    category = shape.category
    if shape.labels is None:
        raise IntegrityError(f"'{shape.points}' has no label file")
    if shape.labels == shape.points:
        table = _read_table(shape.points, columns=7)
        points, raw_labels, first = table[:, :3], table[:, 6], 0
    else:
        points = _read_table(shape.points, columns=3)
        raw_labels = _read_table(shape.labels, columns=1)[:, 0]
        first = category.first - 1  # .seg counts the category's parts from 1
    if len(points) != len(raw_labels):
        raise IntegrityError(
            f"'{shape.labels}' has {len(raw_labels)} labels for {len(points)} points"
        )
    labels = raw_labels.astype(np.int64) + first
    wrong = sorted(set((raw_labels + first).tolist()) - set(category.labels))
    if wrong:
        raise IntegrityError(
            f"'{shape.labels}' has label {wrong[0] - first:g}, which is not a part of "
            f"{category.name} ({category.labels[0] - first} to {category.labels[-1] - first})"
        )
    return points, labels


def _read_table(path: Path, columns: int | None = None) -> NDArray[np.float64]:
    """Read a table of finite numbers; `columns` None allows any number of columns."""
    with blame_file(path, (ValueError, IsADirectoryError), "is not a table of numbers"):
        if path.stat().st_size > _MAX_BYTES:
            raise IntegrityError(f"'{path}' is too large for a shape; is it a foreign file?")
        text = path.read_bytes().decode("ascii")
        if not text.strip():
            raise IntegrityError(f"'{path}' is empty; fetch it again")
        table = np.loadtxt(io.StringIO(text), dtype=np.float64, ndmin=2, comments=None)
    if columns is not None and table.shape[1] != columns:
        raise IntegrityError(f"'{path}' has {table.shape[1]} columns, not {columns}")
    if not np.isfinite(table).all():
        raise IntegrityError(f"'{path}' holds NaN or infinity")
    return table


@dataclass(frozen=True)
class ShapeNetReader(CaseReader):
    """Reads shapes as voxel grids: `x` [1, S, S, S], `y` [S, S, S], `category` its name."""

    cache: Path | None = None

    def read(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """Read and voxelize a shape; nothing about it is random."""
        shape = self.cases[index]
        voxels = self._cached(shape) if self.cache else voxelize(*read_points(shape), self.size)
        return _as_sample(voxels, shape.category)

    def _cached(self, shape: ShapeFiles) -> Voxels:
        """From the cache if the source files have not changed since, else made and stored."""
        assert self.cache is not None
        path = self.cache / str(self.size) / f"{shape.id}.npz"
        sources = [source.stat() for source in (shape.points, shape.labels) if source is not None]
        stamp = np.array([[state.st_size, state.st_mtime_ns] for state in sources], np.int64)
        try:
            with path.open("rb") as kept, np.load(kept, allow_pickle=False) as stored:
                if np.array_equal(stored["stamp"], stamp):
                    return Voxels(self.size, stored["positions"], stored["labels"])
        except Exception:  # absent, torn or foreign: a cache is never more than a shortcut
            pass
        voxels = voxelize(*read_points(shape), self.size)
        with atomic_write(path) as file:
            np.savez(file, stamp=stamp, positions=voxels.positions, labels=voxels.labels)
        return voxels


def _as_sample(voxels: Voxels, category: Category) -> dict[str, Any]:
    return {"x": voxels.occupancy(), "y": voxels.label_grid(), "category": category.name}


def open_reader(
    directory: Path, split: str, *, size: int = 64, fold: int = 0, cache: Path | None = None
) -> ShapeNetReader:
    """Open "train", "validation" or "test".

    `size` is the edge of the voxel grid, 32 to 128 in the paper's experiments. Grids in `cache` are
    made again when a source file changes.
    """
    check_size(size)
    if split not in SPLITS:
        raise UsageError(f"ShapeNet has no split '{split}'; it has {', '.join(SPLITS)}")
    if fold != 0:
        raise UsageError(f"ShapeNet has one split, not folds; fold {fold} does not exist")
    shapes = [s for s in inventory(directory).cases if s.labels and split in splits_of(s)]
    if not shapes:
        raise UsageError(f"no labelled shape of split '{split}' in '{directory}'")
    return ShapeNetReader(tuple(shapes), size, cache)


def inventory(directory: Path) -> Inventory:
    """List a directory's shapes; the layout is recognised by its folders."""
    if (directory / "train_data").is_dir():
        lists: dict[str, tuple[str, ...]] = {}
        roots = [directory / f"{name}_data" for name in _CHALLENGE]
        inventories = [
            _pair_up(root / synset, directory / f"{name}_label" / synset, synset, splits)
            for name, root, splits in zip(_CHALLENGE, roots, ((), (), ("test",)), strict=True)
            for synset in BY_SYNSET
        ]
    else:
        lists = _split_lists(directory)
        roots = [directory]
        folders = [directory / synset for synset in BY_SYNSET if (directory / synset).is_dir()]
        if any((folder / "points").is_dir() for folder in folders):
            inventories = [_pair_up(f / "points", f / "points_label", f.name, ()) for f in folders]
        else:
            inventories = [_tables(folder) for folder in folders]
    if not inventories:
        raise UsageError(
            f"'{directory}' holds no ShapeNet part data; expected train_data/<synset>/*.pts, "
            "<synset>/points/*.pts or <synset>/*.txt"
        )
    strangers = [
        Problem(str(path), "a folder of no known category")
        for root in roots
        for path in visible(root)
        if path.is_dir() and re.fullmatch(r"\d{8}", path.name) and path.name not in BY_SYNSET
    ]
    return _joined([*inventories, Inventory([], strangers)], lists)


def _pair_up(points: Path, labels: Path, synset: str, splits: tuple[str, ...]) -> Inventory:
    point_files, foreign = files_by_stem(points, (".pts",), ".pts file")
    label_files, more_foreign = files_by_stem(labels, (".seg",), ".seg file")
    shapes = [
        ShapeFiles(f"{synset}/{stem}", path, label_files.get(stem), splits)
        for stem, path in point_files.items()
    ]
    notes = [f"{s.id}: no label; skipped" for s in shapes if s.labels is None]
    notes += [
        f"{synset}/{stem}: a label without points; skipped"
        for stem in label_files.keys() - point_files.keys()
    ]
    return Inventory(shapes, [*foreign, *more_foreign], notes)


def _tables(folder: Path) -> Inventory:
    files, foreign = files_by_stem(folder, (".txt",), ".txt file")
    shapes = [ShapeFiles(f"{folder.name}/{stem}", p, p, ()) for stem, p in files.items()]
    return Inventory(shapes, foreign)


def _split_lists(directory: Path) -> dict[str, tuple[str, ...]]:
    """Shape id to splits, from the JSON lists; empty where there are none."""
    splits: dict[str, tuple[str, ...]] = {}
    for split, name in zip(SPLITS, _CHALLENGE, strict=True):
        path = directory / "train_test_split" / f"shuffled_{name}_file_list.json"
        if path.is_file():
            try:
                entries = json.loads(path.read_bytes())
                shapes = ["/".join(entry.split("/")[-2:]) for entry in entries]
            except (ValueError, AttributeError, TypeError) as error:
                raise IntegrityError(f"'{path}' is not a list of shapes: {error}") from error
            splits |= {shape: (*splits.get(shape, ()), split) for shape in shapes}
    return splits


def _joined(inventories: Iterable[Inventory], lists: Mapping[str, tuple[str, ...]]) -> Inventory:
    inventories = list(inventories)
    shapes = [shape for part in inventories for shape in part.cases]
    problems = [problem for part in inventories for problem in part.problems]
    notes = sorted(note for part in inventories for note in part.notes)
    if lists:
        here = {shape.id for shape in shapes}
        absent = [shape for shape in lists if shape not in here]
        if absent:
            reason = f"{abbreviate(absent)} listed but absent of {len(lists)}"
            problems.append(Problem("train_test_split", reason))
        twice = [shape for shape, splits in lists.items() if len(splits) > 1]
        if twice:
            notes.append(f"{abbreviate(twice)} listed in more than one split; read in each of them")
        notes += [f"{s.id}: in no split list; skipped" for s in shapes if s.id not in lists]
        shapes = [replace(s, splits=lists[s.id]) for s in shapes if s.id in lists]
    return Inventory(shapes, problems, notes)


@checks(path=lambda shape: shape.points)
def check(shape: ShapeFiles) -> Iterator[tuple[str, str]]:
    """Read a shape and count its category, split and parts."""
    if shape.labels is None:
        check_range(shape.points, _read_table(shape.points, columns=3))
        yield "split", "unlabelled"
        return
    points, labels = read_points(shape)
    check_range(shape.points, points)
    for split in splits_of(shape):
        yield "split", split
    yield "category", shape.category.name
    for label in np.unique(labels):
        part = shape.category.parts[label - shape.category.first]
        yield "part", f"{label:02d} {shape.category.name} {part}"


def write(directory: Path, *, cases: int, size: int, seed: int, classes: int) -> None:
    """Write shapes in the layout of the ICCV-2017 challenge; a quarter each in val and test.

    Shapes are points: `size` has no effect, the reader chooses the grid.
    """
    for index in range(cases):
        shape = draw_shape(seed, index)
        # Rounds of 16 categories go to the folders in turn, so that each folder has them all.
        folder = ("train", "val", "train", "test")[index // len(CATEGORIES) % 4]
        synset, name = shape.category.synset, f"synthetic{index:05d}"
        points = "".join(f"{x:.5f} {y:.5f} {z:.5f}\n" for x, y, z in shape.points)
        labels = "".join(f"{label}\n" for label in shape.labels - shape.category.first + 1)
        write_text(directory / f"{folder}_data" / synset / f"{name}.pts", points)
        write_text(directory / f"{folder}_label" / synset / f"{name}.seg", labels)


def sample(index: int, *, volume: tuple[int, int, int], seed: int, classes: int) -> dict[str, Any]:
    """Draw a voxelized shape; the categories take turns."""
    shape = draw_shape(seed, index)
    return _as_sample(voxelize(shape.points, shape.labels, volume[-1]), shape.category)


def predict(
    network: Predictor, source: Path, target: Path, *, size: int, category: str | None, **_: Any
) -> dict[str, Any]:
    """Predict a point cloud (x y z in the first columns); write rows x y z label."""
    if not source.exists():
        raise UsageError(f"'{source}' does not exist")
    points = _read_table(source)[:, :3]
    if points.shape[1] < 3:
        raise IntegrityError(f"'{source}' is not a point cloud: rows of x y z are needed")
    positions = voxel_positions(points, size)
    occupied = np.unique(positions)
    voxels = Voxels(size, occupied, np.zeros(len(occupied), np.uint8))
    candidates = category_named(category).labels if category else range(PARTS)
    scores = network(voxels.occupancy()).flatten(1)[list(candidates)]
    labels = scores.argmax(0).numpy()[positions] + candidates[0]
    rows = zip(points, labels, strict=True)
    write_text(target, "".join(f"{x:g} {y:g} {z:g} {label}\n" for (x, y, z), label in rows))
    values, counts = np.unique(labels, return_counts=True)
    return {"points": {str(v): int(n) for v, n in zip(values, counts, strict=True)}}


register_dataset(
    Dataset(
        name="shapenet",
        about="ShapeNet parts, 16 categories and 50 parts of voxelised shapes",
        recipe="shapenet-unet3d",
        size=64,
        task_name="parts",
        task=lambda window, metadata: parts.PartSegmentation(),
        draw=parts.draw_parts,
        categories=tuple(BY_NAME),
        has_cache=True,
        inventory=inventory,
        check=check,
        open_reader=open_reader,
        write=write,
        sample=sample,
        predict=predict,
    )
)
