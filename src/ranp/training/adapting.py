"""Recipes that scale themselves to the data: channels, classes and the edge of the samples.

A recipe asks for it with a section `adapt`, such as `adapt: {memory_gib: 4}`: the most memory that
a training step of the full network may take, as predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ranp.datasets import find_dataset
from ranp.datasets.access import existing_directory
from ranp.errors import UsageError
from ranp.models import build_network
from ranp.resources import predict_training_memory
from ranp.training.config import Config
from ranp.training.optim import optimizer_state

_STEP, _SMALLEST = 8, 16  # edges of samples are multiples of the one, and not below the other


def adapt(
    config: Config, limits: Mapping[str, Any], data: Path, given: frozenset[str]
) -> tuple[dict[str, Any], str]:
    """Return settings that follow from a data set, by dotted key, and a sentence about them.

    A network of the user's own keeps its options, and its memory is not predicted: the recipe does
    not know how it is built. The dotted keys that the user chose (`given`) stay; `limits` is the
    section `adapt`.
    """
    dataset = find_dataset(config.data.kind)
    if dataset.describe is None:
        raise UsageError(
            f"data set '{dataset.name}' does not describe itself; leave out the section adapt"
        )
    facts = dataset.describe(existing_directory(data))
    is_own = config.network.is_own
    scaled = {} if is_own else {"in_channels": facts.channels, "classes": facts.classes}
    scaled = {key: n for key, n in scaled.items() if f"network.options.{key}" not in given}
    changes: dict[str, Any] = {f"network.options.{key}": n for key, n in scaled.items()}
    if "data.size" not in given:
        changes["data.size"] = facts.size
    about = (
        f"{facts.cases} cases of {facts.channels} channels, {facts.classes} classes and median "
        f"shape {'x'.join(map(str, facts.shape))}"
    )
    if is_own or "data.size" not in changes:
        return changes, f"Adapted to {about}."
    options = {**config.network.options, **scaled}
    model = build_network(config.network.name, **options)
    optimizer = optimizer_state(config.optimizer)
    size, memory = facts.size, float(limits["memory_gib"]) * 2**30
    while True:
        shape = (config.batch, options["in_channels"], *dataset.volume(size))
        peak = predict_training_memory(model, shape, optimizer=optimizer).peak
        if peak <= memory or size <= _SMALLEST:
            break
        size = max(size - _STEP, _SMALLEST)
    changes["data.size"] = size
    return changes, (
        f"Adapted to {about}: samples of {'x'.join(map(str, dataset.volume(size)))}, "
        f"{peak / 2**30:.2f} GiB predicted for a training step of the full network."
    )
