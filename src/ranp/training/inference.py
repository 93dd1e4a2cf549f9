"""What a trained network is for: metrics on a data set, and predictions for single inputs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ranp.datasets import brats
from ranp.datasets.crops import centre_corner, crop_or_pad, normalise
from ranp.datasets.nifti import read_volume, same_geometry, write_volume
from ranp.datasets.parts import PARTS, category_named
from ranp.datasets.ucf101 import ClipFile, Ucf101Reader
from ranp.datasets.voxels import Voxels, voxel_positions
from ranp.errors import IntegrityError, UsageError
from ranp.files import read_sealed_json, write_text
from ranp.slimming import load_weights
from ranp.training.checkpoint import load_checkpoint
from ranp.training.job import Job, read_job
from ranp.training.loop import BEST, LAST, evaluate
from ranp.training.networks import Factory, build_network, fresh_network
from ranp.training.preparation import open_split, stored_plan
from ranp.training.run import make_fabric, validation_loader
from ranp.training.tasks import make_task

Weights = Literal["best", "last"]


def load_run(
    directory: Path, weights: Weights = "best", factory: Factory | None = None
) -> tuple[Job, nn.Module]:
    """A run's job and its trained network, in eval mode.

    Args:
        directory: The run directory.
        weights: Of the best epoch, or the last ones.
        factory: The user's own network, where the run is of one.
    """
    job = read_job(directory, factory)
    path = directory / (BEST if weights == "best" else LAST)
    if not path.exists():
        raise UsageError(f"run '{directory}' has no {weights} weights yet; train it first")
    full = build_network(job.config.network, factory)
    plan = stored_plan(directory)
    model = fresh_network(full, plan, transfer=job.transfer, seed=job.config.seed)
    if weights == "best":
        load_weights(model, path)
    else:
        load_checkpoint(path, model)
    return job, model.eval()


def evaluate_run(
    directory: Path,
    *,
    data: Path | None = None,
    split: str = "validation",
    weights: Weights = "best",
    factory: Factory | None = None,
) -> dict[str, Any]:
    """Evaluates a run on its own data or on another data set of the kind.

    Args:
        directory: The run directory.
        data: A data set's directory, if not the run's own.
        split: "train", "validation" or, for ShapeNet, "test".
        weights: Of the best epoch, or the last ones.
        factory: The user's own network, where the run is of one.
    """
    job, model = load_run(directory, weights, factory)
    config = job.config
    size = config.data.validation_size or config.data.size
    cases = open_split(job, split, size, data)
    fabric = make_fabric(config)
    model = fabric.to_device(model)
    task = make_task(config.task, window=config.data.size)
    metrics = evaluate(fabric, model, task, validation_loader(cases, config))
    return {
        "run": str(directory),
        "weights": weights,
        "split": split,
        "cases": len(cases),
        "metrics": metrics,
    }


def predict(
    directory: Path,
    source: Path,
    target: Path,
    *,
    weights: Weights = "best",
    category: str | None = None,
    factory: Factory | None = None,
) -> dict[str, Any]:
    """Predicts one input and writes the result.

    - hippocampus: a NIfTI volume to a NIfTI label volume with the same affine
    - BraTS: a folder with the four modalities to the same
    - parts: a point cloud (x y z in the first columns) to rows x y z label
    - classification: a video to its five likeliest classes, as JSON

    Args:
        directory: The run directory.
        source: The input.
        target: The file to write.
        weights: Of the best epoch, or the last ones.
        category: A shape's category, if known: then only its own parts are considered.
        factory: The user's own network, where the run is of one.

    Returns:
        What was predicted, in short.
    """
    if category is not None:
        category_named(category)
    job, model = load_run(directory, weights, factory)
    if job.config.task in ("hippocampus", "brats") and not target.name.endswith(".nii.gz"):
        raise UsageError(f"'{target}': label volumes are written as .nii.gz; name it so")
    if category is not None and job.config.task != "parts":
        raise UsageError(f"a category is for shapes, and '{directory}' is about {job.config.task}")
    task = make_task(job.config.task, window=job.config.data.size)

    def network(x: NDArray[np.float32]) -> Tensor:
        with torch.no_grad():
            return task.predict(model, torch.from_numpy(np.ascontiguousarray(x))[None])[0]

    if job.config.task == "parts":
        found = _predict_points(job, network, source, target, category)
    elif job.config.task == "classification":
        found = _predict_video(job, network, source, target)
    else:
        found = _predict_volume(job, network, source, target)
    return {"run": str(directory), "input": str(source), "output": str(target), **found}


Predictor = Callable[[NDArray[np.float32]], Tensor]


def _predict_volume(job: Job, network: Predictor, source: Path, target: Path) -> dict[str, Any]:
    if job.config.task == "brats":
        x, affine = _read_modalities(source)
        labels = network(x).argmax(0).numpy()
    else:
        volume = read_volume(source)
        x, affine = normalise(volume.data, np.ones(volume.data.shape, bool))[None], volume.affine
        # In a cube as in validation, and cut out of it again.
        size = max(job.config.data.validation_size or job.config.data.size, *x.shape[1:])
        corner = centre_corner(x.shape[1:], size)
        cube = network(crop_or_pad(x, corner, size)).argmax(0).numpy()
        inside = tuple(slice(-c, -c + n) for c, n in zip(corner, x.shape[1:], strict=True))
        labels = cube[inside]
    write_volume(target, labels.astype(np.uint8), affine)
    values, counts = np.unique(labels, return_counts=True)
    return {"voxels": {str(v): int(n) for v, n in zip(values, counts, strict=True)}}


def _read_modalities(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    if not folder.is_dir():
        raise UsageError(f"'{folder}': name the folder with a case's four modalities")
    cases = brats.inventory(folder).cases
    if len(cases) != 1:
        raise UsageError(f"'{folder}' holds {len(cases)} whole cases; name the folder of one")
    volumes = [read_volume(path) for path in cases[0].images]
    for path, volume in zip(cases[0].images, volumes, strict=True):
        if not same_geometry(volumes[0], volume):
            raise IntegrityError(f"'{path}' differs in geometry from '{cases[0].images[0].name}'")
    return np.stack([normalise(v.data, v.data != 0) for v in volumes]), volumes[0].affine


def _predict_points(
    job: Job, network: Predictor, source: Path, target: Path, category: str | None
) -> dict[str, Any]:
    points = _read_points(source)
    size = job.config.data.validation_size or job.config.data.size
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


def _read_points(path: Path) -> NDArray[np.float64]:
    try:
        text = path.read_bytes().decode("ascii")
        table = np.loadtxt(io.StringIO(text), dtype=np.float64, ndmin=2, comments=None)
    except FileNotFoundError as error:
        raise UsageError(f"'{path}' does not exist") from error
    except (ValueError, IsADirectoryError) as error:
        raise IntegrityError(f"'{path}' is no table of numbers: {error}") from error
    if table.size == 0 or table.shape[1] < 3 or not np.isfinite(table).all():
        raise IntegrityError(f"'{path}' is no point cloud: rows of x y z, all finite, are needed")
    return table[:, :3]


def _predict_video(job: Job, network: Predictor, source: Path, target: Path) -> dict[str, Any]:
    clip = ClipFile(source.stem, source, label=0, class_name="", splits=())
    sample = Ucf101Reader((clip,), job.config.data.size, training=False).read(
        0, np.random.default_rng(0)
    )
    probability = network(sample["x"]).softmax(0)
    names = read_sealed_json(job.directory / "data.json", "data").get("classes", {})
    best = probability.topk(min(5, len(probability)))
    top = [
        {"class": names.get(str(int(label)), str(int(label))), "probability": float(value)}
        for value, label in zip(best.values, best.indices, strict=True)
    ]
    write_text(target, json.dumps(top, indent=1) + "\n")
    return {"top5": top}
