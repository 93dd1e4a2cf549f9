"""Graceful stop: after a signal, a loop ends with the current step."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from ranp.errors import RanpError


class Interrupted(RanpError):
    """Work stopped on a signal after it was saved; exit code 130 for SIGINT, 143 for SIGTERM."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class GracefulStop:
    """While inside, SIGTERM and the first SIGINT set `number`; a second SIGINT ends at once."""

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> GracefulStop:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python lets the main thread alone handle signals
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
