"""Graceful stop: after a signal, a loop ends with the current step."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ranp.errors import RanpError


def end_while_starting() -> None:
    """Let SIGINT end the process, with a line, while it imports what commands are made of.

    Packages swallow an interruption of their import, or break by it; nothing is written by then.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
        signal.signal(signal.SIGINT, _end_if_starting)


def _end_if_starting(number: int, frame: FrameType | None) -> None:
    torch = sys.modules.get("torch")
    importing = frame
    while importing is not None and "importlib" not in importing.f_code.co_filename:
        importing = importing.f_back
    is_starting = torch is None or getattr(torch.__spec__, "_initializing", False)
    if importing is None or not is_starting:
        raise KeyboardInterrupt
    os.write(2, b"ranp: interrupted\n")
    os._exit(128 + number)


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
        if number == signal.SIGINT:  # a step may take minutes; by the descriptor, as handlers must
            os.write(2, b"\nStopping after this step; Ctrl-C again stops at once.\n")


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as Python raises SIGINT: no `except Exception` of the user's code stops it."""


@contextmanager
def stoppable(message: str) -> Iterator[None]:
    """End work on SIGINT or SIGTERM wherever it is, with a message that says how to go on.

    What runs inside is closed as by an error: files of the user's code, and locks.

    Raises:
        Interrupted: A signal came.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if main else None
    try:
        yield
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, _Terminated) else signal.SIGINT
        raise Interrupted(number, message) from error
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
