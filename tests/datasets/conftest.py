from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def forked_verifiers(request: pytest.FixtureRequest) -> None:
    """Every verification starts processes; some of `test_verification` are spawned, as users'."""
    if request.module.__name__.rpartition(".")[2] != "test_verification":
        request.getfixturevalue("forks")
