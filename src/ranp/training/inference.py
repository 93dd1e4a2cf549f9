"""Evaluation and prediction with a trained network."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ranp.errors import UsageError, suggest
from ranp.schemas import read_run_file, run_id
from ranp.slimming import load_weights, mark
from ranp.training.checkpoint import load_checkpoint
from ranp.training.job import Job, read_job
from ranp.training.loop import BEST, LAST, evaluate
from ranp.training.networks import Factory, build_network
from ranp.training.preparation import check_cases, fresh_network, open_split, stored_plan
from ranp.training.run import make_fabric, validation_loader

Weights = Literal["best", "last"]


def load_run(
    directory: Path, weights: Weights = "best", factory: Factory | None = None
) -> tuple[Job, nn.Module]:
    """Load a run's job and its network, in eval mode, with the weights of the best or last epoch.

    `factory` builds the network where it is the user's own.
    """
    job = read_job(directory, factory)
    path = directory / (BEST if weights == "best" else LAST)
    if not path.exists():
        raise UsageError(f"run '{directory}' has no {weights} weights yet; train it first")
    full = build_network(job.config.network, factory)
    plan = stored_plan(directory)
    model = fresh_network(full, plan, transfer=job.transfer, seed=job.config.seed)
    mark(model, run=run_id(directory))
    if weights == "best":
        load_weights(model, path)
    else:
        load_checkpoint(path, model)
    return job, model.eval()


def validation_shape(job: Job) -> tuple[int, ...]:
    """Return the shape of a batch with the first validation case."""
    case = open_split(job, "validation", job.config.data.size_in_validation)[0]
    return (1, *case["x"].shape)


def evaluate_run(
    directory: Path,
    *,
    data: Path | None = None,
    split: str = "validation",
    weights: Weights = "best",
    factory: Factory | None = None,
) -> dict[str, Any]:
    """Evaluate a run (see `load_run`) on a split of its own data, or of `data`."""
    job, model = load_run(directory, weights, factory)
    config = job.config
    cases = open_split(job, split, config.data.size_in_validation, data)
    if data is None:
        check_cases(job, split, cases)
    fabric = make_fabric(config)
    model = fabric.to_device(model)
    task = config.data.dataset.make_task(config.data.size, cases.reader.metadata)
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
    """Predict one input with a run (see `load_run`), write the result, and return a summary of it.

    What input and result are is up to the data set: a volume becomes a label volume with the same
    affine, a point cloud rows of x y z label, a video or a volume to classify its five likeliest
    classes as JSON. Of a shape whose `category` is known, only its own parts are considered.
    """
    job, model = load_run(directory, weights, factory)
    dataset = job.config.data.dataset
    if category is not None and not dataset.categories:
        raise UsageError(f"a category is for shapes, and '{directory}' is about {dataset.about}")
    if category is not None and category not in dataset.categories:
        raise UsageError(f"unknown category '{category}'.{suggest(category, dataset.categories)}")
    metadata = read_run_file(directory, "data.json", "data")
    task = dataset.make_task(job.config.data.size, metadata)

    def network(x: NDArray[np.float32]) -> Tensor:
        with torch.no_grad():
            return task.predict(model, torch.from_numpy(np.ascontiguousarray(x))[None])[0]

    size = job.config.data.size_in_validation
    return dataset.predict(network, source, target, size=size, metadata=metadata, category=category)
