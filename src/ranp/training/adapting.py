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

_STEP, _SMALLEST = 8, 16  # edges of samples are multiples of the one, and not below the other


def adapt(
    content: Mapping[str, Any], limits: Mapping[str, Any], data: Path, given: frozenset[str]
) -> tuple[dict[str, Any], str]:
    """Return settings that follow from a data set, by dotted key, and a sentence about them.

    Args:
        content: The recipe.
        limits: Its section `adapt`.
        data: Directory of the data set.
        given: Dotted keys that the user chose, which stay.
    """
    dataset = find_dataset(content["data"]["kind"])
    if dataset.describe is None:
        raise UsageError(
            f"data set '{dataset.name}' does not describe itself; leave out the section adapt"
        )
    facts = dataset.describe(existing_directory(data))
    changes: dict[str, Any] = {
        "network.options.in_channels": facts.channels,
        "network.options.classes": facts.classes,
        "data.size": facts.size,
    }
    changes = {key: value for key, value in changes.items() if key not in given}
    about = (
        f"{facts.cases} cases of {facts.channels} channels, {facts.classes} classes and median "
        f"shape {'x'.join(map(str, facts.shape))}"
    )
    if "data.size" not in changes:
        return changes, f"Adapted to {about}."
    options = {
        **content["network"].get("options", {}),
        **{k.removeprefix("network.options."): v for k, v in changes.items() if "options" in k},
    }
    model = build_network(content["network"]["name"], **options)
    name = content["optimizer"]["name"]
    optimizer: Any = "momentum" if name == "sgd" else name
    size, memory = facts.size, float(limits["memory_gib"]) * 2**30
    while True:
        shape = (content["batch"], options["in_channels"], *dataset.volume(size))
        peak = predict_training_memory(model, shape, optimizer=optimizer).peak
        if peak <= memory or size <= _SMALLEST:
            break
        size = max(size - _STEP, _SMALLEST)
    changes["data.size"] = size
    return changes, (
        f"Adapted to {about}: samples of {'x'.join(map(str, dataset.volume(size)))}, "
        f"{peak / 2**30:.2f} GiB predicted for a training step of the full network."
    )
