"""A data set of one's own: noisy volumes with a bright box, as .npz files, and their task."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ranp.datasets import Dataset, Reader, register_dataset
from ranp.datasets.tasks import Segmentation
from ranp.datasets.verification import Checked, Inventory, Problem
from ranp.errors import UsageError


def sample(index, *, volume, seed, classes):
    rng = np.random.default_rng([seed, index])
    y = np.zeros(volume, np.int64)
    corner = rng.integers(0, np.array(volume) // 2)
    y[tuple(slice(c, c + n // 2) for c, n in zip(corner, volume, strict=True))] = 1
    return {"x": (y + rng.normal(0, 0.3, volume)).astype(np.float32)[None], "y": y}


def write(directory, *, cases, size, seed, classes):
    directory.mkdir(parents=True, exist_ok=True)
    for index in range(cases):
        drawn = sample(index, volume=(size, size, size), seed=seed, classes=classes)
        np.savez(directory / f"{index:03d}.npz", **drawn)


def inventory(directory):
    return Inventory(sorted(Path(directory).glob("*.npz")))


def check(path):
    with np.load(path) as arrays:
        wrong = [] if arrays["x"].shape[1:] == arrays["y"].shape else ["x and y differ in shape"]
    return Checked(path.stem, problems=[Problem(path.name, reason) for reason in wrong])


@dataclass(frozen=True)
class Boxes(Reader):
    paths: tuple[Path, ...]

    @property
    def ids(self):
        return [path.stem for path in self.paths]

    def read(self, index, rng):
        with np.load(self.paths[index]) as arrays:
            return {"x": arrays["x"], "y": arrays["y"]}


def open_reader(directory, split, *, size, fold=0):
    paths = inventory(directory).cases
    if not paths:
        raise UsageError(f"'{directory}' must hold .npz files, got none")
    return Boxes(tuple(p for i, p in enumerate(paths) if (i % 4 == fold) != (split == "train")))


def predict(network, source, target, *, size, metadata, category):
    with np.load(source) as arrays:
        labels = network(arrays["x"]).argmax(0).numpy()
    np.savez(target, y=labels)
    return {"voxels": int(labels.sum())}


def draw(samples):
    from matplotlib.figure import Figure

    figure = Figure()
    for column, drawn in enumerate(samples):
        figure.add_subplot(1, len(samples), column + 1).imshow(drawn["x"][0, 0])
    return figure


register_dataset(
    Dataset(
        name="boxes",
        about="bright boxes in noise",
        recipe="boxes",
        size=8,
        inventory=inventory,
        check=check,
        open_reader=open_reader,
        write=write,
        sample=sample,
        task_name="boxes",
        task=lambda window, metadata: Segmentation({"box": (1,)}),
        predict=predict,
        draw=draw,
    )
)
