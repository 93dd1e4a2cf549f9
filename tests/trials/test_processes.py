"""Processes that help with a work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ranp.trials.processes import Worker, helpers


class Process:
    """Of three processes the second cannot be started."""

    made: list[Process]

    def __init__(self, target: Any, args: Any) -> None:
        self.pid: int | None = None
        self.done: list[str] = []
        Process.made.append(self)

    def start(self) -> None:
        if len(Process.made) > 1 and self is Process.made[1]:
            raise OSError("no more processes")
        self.pid = 1

    def terminate(self) -> None:
        self.done.append("terminated")

    def join(self) -> None:
        self.done.append("joined")


def test_what_was_started_is_ended_where_another_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    Process.made = []
    context = SimpleNamespace(Process=Process)
    monkeypatch.setattr("multiprocessing.get_context", lambda method: context)
    with pytest.raises(OSError, match="no more processes"), helpers(3, Worker(print)):
        raise AssertionError
    assert [each.done for each in Process.made] == [["terminated", "joined"], [], []]
