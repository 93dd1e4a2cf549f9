"""Throughput of the data pipeline: voxelization against a plain loop, loaders in samples/s."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ranp.datasets import DATASETS, open_cases, synthesise
from ranp.datasets.cases import Cases, Reader
from ranp.datasets.loader import Loader
from ranp.datasets.voxels import EMPTY, voxelize

# Cases on disk and their size, size of the samples, batch, batches: large enough to be typical.
_SETS = {
    "shapenet": (64, 64, 64, 8, 20),
    "brats": (10, 96, 64, 2, 10),
    "ucf101": (40, 240, 112, 4, 12),
    "hippocampus": (40, 64, 64, 4, 40),
}
_ROUNDS = 2


@dataclass(frozen=True)
class _Repeated:
    """A reader's cases over and over, for epochs long enough to see a steady state."""

    reader: Reader
    count: int

    @property
    def ids(self) -> Sequence[str]:
        return [str(index) for index in range(self.count)]

    def read(self, index: int, rng: np.random.Generator) -> Mapping[str, Any]:
        return self.reader.read(index % len(self.reader.ids), rng)


def voxelize_by_loop(
    points: list[list[float]], labels: list[int], size: int
) -> tuple[np.ndarray, np.ndarray]:
    """What `voxelize` does, as one would write it without NumPy: a loop over the points."""
    radius = max((x * x + y * y + z * z) ** 0.5 for x, y, z in points)
    factor, half = (size - 1) / (2 * radius), size / 2
    votes: dict[tuple[int, int, int], dict[int, int]] = {}
    for (x, y, z), label in zip(points, labels, strict=True):
        cell = (int(x * factor + half), int(y * factor + half), int(z * factor + half))
        counts = votes.setdefault(cell, {})
        counts[label] = counts.get(label, 0) + 1
    occupancy = np.zeros((1, size, size, size), np.float32)
    grid = np.full((size, size, size), EMPTY, np.int64)
    for cell, counts in votes.items():
        occupancy[(0, *cell)] = 1
        grid[cell] = min(counts, key=lambda label: (-counts[label], label))
    return occupancy, grid


def _medians(fast: Callable[[], object], slow: Callable[[], object]) -> tuple[float, float]:
    """The median durations of two calls that take turns, ten of the first to one of the second.

    In CPU time of this one thread: others on the machine interrupt the longer call more often.
    """
    durations: dict[Callable[[], object], list[float]] = {fast: [], slow: []}
    for call in 40 * ([fast] * 10 + [slow]):
        start = time.process_time()
        call()
        durations[call].append(time.process_time() - start)
    return statistics.median(durations[fast]), statistics.median(durations[slow])


def _voxelization() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(2500, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)  # a sphere's surface
    labels = rng.integers(0, 4, 2500)
    as_lists = points.tolist(), labels.tolist()

    def vectorised() -> tuple[np.ndarray, np.ndarray]:
        voxels = voxelize(points, labels, 64)
        return voxels.occupancy(), voxels.label_grid()

    for ours, plain in zip(vectorised(), voxelize_by_loop(*as_lists, 64), strict=True):
        np.testing.assert_array_equal(ours, plain)
    fast, slow = _medians(vectorised, lambda: voxelize_by_loop(*as_lists, 64))
    print(
        f"voxelization of 2,500 points to 64^3: {fast * 1e3:.2f} ms, "
        f"plain loop {slow * 1e3:.2f} ms: {slow / fast:.0f} x faster"
    )


def _epoch(loader: Loader, epoch: int) -> tuple[float, float]:
    """Seconds until the first batch is there, and samples per second from then on."""
    start = time.perf_counter()
    batches = loader.epoch(epoch)
    next(batches)
    first = time.perf_counter()
    samples = sum(len(batch["id"]) for batch in batches)
    return first - start, samples / (time.perf_counter() - first)


def _loaders() -> None:
    """Epochs with 0 and with 2 workers take turns; medians over rounds."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in DATASETS:
            count, written_size, size, batch, length = _SETS[kind]
            directory = Path(folder) / kind
            synthesise(kind, directory, cases=count, size=written_size, seed=0)
            cases = open_cases(kind, directory, "train", size=size)
            cases = Cases(_Repeated(cases.reader, batch * length))
            loaders = {w: Loader(cases, batch, training=True, workers=w) for w in (0, 2)}
            epochs: dict[int, list[tuple[float, float]]] = {0: [], 2: []}
            for epoch in range(1 + _ROUNDS):
                for workers, loader in loaders.items():
                    epochs[workers].append(_epoch(loader, epoch))
            starts = {w: [e[0] for e in found] for w, found in epochs.items()}
            rates = {w: statistics.median(e[1] for e in found[1:]) for w, found in epochs.items()}
            print(
                f"loader, {kind} at {size}: {rates[0]:.1f} samples/s with 0 workers, "
                f"{rates[2]:.1f} with 2: {rates[2] / rates[0]:.2f} x; first batch after "
                f"{statistics.median(starts[0]):.2f} s with 0; with 2 after {starts[2][0]:.2f} s, "
                f"in later epochs {statistics.median(starts[2][1:]):.2f} s"
            )


def run() -> None:
    """Prints the figures."""
    _voxelization()
    _loaders()


if __name__ == "__main__":
    run()
