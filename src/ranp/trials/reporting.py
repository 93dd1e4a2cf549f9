"""Trainers that own their loop and call you back, as training functions that yield."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from functools import wraps
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from torch import nn

from ranp.errors import UsageError

Report = Callable[[Any], None]
"""`report(metric)`, or `report(metrics by name)`, at every check-in."""


class _Ended(BaseException):
    """Ends a training where it reports; no `except Exception` of a trainer catches it."""


def reporting(
    train: Callable[[nn.Module, int, Report], object],
) -> Callable[[nn.Module, int], Generator[Any]]:
    """Turn `train(model, seed, report)` into a training function that yields what is reported.

    `race` and `compare` train a network up to a check-in, and go on later or not at all. A function
    that yields can be stopped like that; a trainer that owns its loop, such as those of Lightning,
    Ignite and MONAI, can not. Decorate a function that runs the trainer, and call `report` in a
    callback of it, with what you would yield:

        @ranp.reporting
        def train(model, seed, report):
            trainer = Trainer(callbacks=[on_epoch_end(lambda metrics: report(metrics["dice"]))])
            trainer.fit(model)

    The function runs in a thread of its own, which waits in `report` while other networks are
    trained. A training that is not needed any further ends there, by an exception that passes
    through the trainer, so that whatever it opened is closed.
    """
    if inspect.isgeneratorfunction(train):
        raise UsageError(
            f"reporting is for functions that call report, got {train.__qualname__}, which yields; "
            "use it as it is"
        )

    @wraps(train)
    def lines(model: nn.Module, seed: int) -> Generator[Any]:
        training = _Training(lambda report: train(model, seed, report))
        try:
            while training.advance():
                yield training.line
        except GeneratorExit:
            training.end()
            raise
        finally:
            training.ended.set()

    return lines


class _Training:
    """A training in a thread, which runs only while `advance` waits for it.

    Attributes:
        line: What was reported last.
        ended: Set when nobody waits for reports any more.
    """

    def __init__(self, run: Callable[[Report], object]) -> None:
        self.line: Any = None
        self.ended = Event()
        self._run = run
        self._error: BaseException | None = None
        self._to_train: SimpleQueue[None] = SimpleQueue()
        self._reported: SimpleQueue[bool] = SimpleQueue()
        # A daemon: an interrupted process does not wait for the next report.
        self._thread = Thread(target=self._train, name="ranp training", daemon=True)

    def advance(self) -> bool:
        """Train up to the next report; return whether there was one."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._to_train.put(None)
        if self._reported.get():
            return True
        self._thread.join()
        if self._error is not None:
            raise self._error
        return False

    def end(self) -> None:
        """End the training where it waits, and what it opened."""
        self.ended.set()
        self._to_train.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _train(self) -> None:
        try:
            self._run(self._report)
        except _Ended:
            pass
        except BaseException as error:
            self._error = error
        self._reported.put(False)

    def _report(self, line: Any) -> None:
        if not self.ended.is_set():
            self.line = line
            self._reported.put(True)
            self._to_train.get()
        if self.ended.is_set():
            raise _Ended("this training is not needed any further")
