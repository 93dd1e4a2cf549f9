from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ranp.datasets import synthesise
from ranp.training.config import Config, load_config
from tests.cli.conftest import ranp  # noqa: F401 - a fixture

TINY = {
    "network.options": {"in_channels": 1, "classes": 3, "levels": 2, "base_width": 4},
    "epochs": 2,
    "batch": 2,
    "checkpoint_minutes": 0,
}


@pytest.fixture(scope="session")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten generated hippocampi: eight for training, two for validation."""
    directory = tmp_path_factory.mktemp("data") / "crops"
    synthesise("hippocampus", directory, cases=10, size=24, seed=0)
    return directory


@pytest.fixture
def tiny() -> Callable[..., Config]:
    """Makes the configuration of a network that trains in a second."""

    def make(**changes: Any) -> Config:
        dotted = {key.replace("__", "."): value for key, value in changes.items()}
        return load_config("hippocampus-unet3d", smoke=True, changes={**TINY, **dotted})

    return make
