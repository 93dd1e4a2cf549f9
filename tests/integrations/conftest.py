from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out what is all slow where slow tests are: importing nnU-Net takes seconds."""
    is_left_out = config.option.markexpr == "not slow" and collection_path.name == "test_nnunet.py"
    return is_left_out or None
