"""Trainers that own their loop and call you back, as training functions that yield."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import wraps
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import torch

from ranp.errors import UsageError
from ranp.trials.loops import training_name

Report = Callable[[Any], None]
"""`report(metric)`, or `report(metrics by name)`, at every check-in."""

_CLOSING_SECONDS = 10.0
"""How long an interrupted training may take to close what it has opened."""


class _Ended(BaseException):
    """Ends a training; no `except Exception` of a trainer catches it."""

    def __str__(self) -> str:
        return "this training is not needed any further"


def reporting(train: Callable[..., object]) -> Callable[..., Generator[Any]]:
    """Turn `train(model, seed, report)` into a training function that yields what is reported.

    `race` and `compare` train a network up to a check-in, and go on later or not at all. A function
    that yields can be stopped like that; a trainer that owns its loop, such as those of Lightning,
    Ignite and MONAI, can not. Decorate a function that runs the trainer, and call `report` in a
    callback of it, with what you would yield::

        @ranp.reporting
        def train(model, seed, report):
            trainer = Trainer(callbacks=[on_epoch_end(lambda metrics: report(metrics["dice"]))])
            trainer.fit(model)

    The function runs in a thread of its own, which waits in `report` while other networks are
    trained. A training that is not needed any further ends there, by an exception that passes
    through the trainer, so that whatever it opened is closed. One that is interrupted in between,
    as by Ctrl-C, is ended in the same way, wherever it is.

    Further arguments can be set by `functools.partial`, before or after; methods can be decorated.
    """
    _check(train)

    @wraps(train)
    def lines(*given: Any, **settings: Any) -> Generator[Any]:
        by_name = [settings.pop(name) for name in ("model", "seed") if name in settings]
        training = _Training(lambda report: train(*given, *by_name, report, **settings))
        try:
            while training.advance():
                yield training.line
        except GeneratorExit:
            training.end()
            raise
        except BaseException:  # a signal, wherever it comes; or the training's own
            training.interrupt()
            raise
        finally:
            training.ended.set()

    return lines


def _check(train: Callable[..., object]) -> None:
    """Refuse what does not take a report, or yields by itself."""
    if not callable(train):
        raise UsageError(
            "reporting is for functions train(model, seed, report), got "
            f"{type(train).__name__}; decorate a function that runs your trainer"
        )
    name = training_name(train).partition(":")[2]
    if inspect.isgeneratorfunction(train):
        raise UsageError(
            f"reporting is for functions that call report, got {name}, which yields; "
            "use it as it is"
        )
    signature = inspect.signature(train)
    try:
        signature.bind_partial(None, 0, None)
    except TypeError as error:
        raise UsageError(
            f"reporting is for functions train(model, seed, report), got {name}{signature}; "
            "let it take a report, and call that at every check-in"
        ) from error


@dataclass(frozen=True)
class _Devices:
    """Devices that PyTorch keeps for every thread, as they are in another one."""

    default: torch.device
    cuda: int | None

    def take_over(self) -> None:
        """Set them in the thread that runs this."""
        if self.default != torch.get_default_device():
            torch.set_default_device(self.default)
        if self.cuda is not None:
            torch.cuda.set_device(self.cuda)


def _devices() -> _Devices:
    """Return the devices of the thread that runs this."""
    cuda = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    return _Devices(torch.get_default_device(), cuda)


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
        self._thread = Thread(
            target=self._train, args=(_devices(),), name="ranp training", daemon=True
        )

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

    def interrupt(self) -> None:
        """End the training wherever it is, and wait until it has closed what it opened."""
        if self._thread.is_alive():
            ident, ended = ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(_Ended)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ended)
            self.ended.set()  # not before, or a report would end it once, and this once more
            self._to_train.put(None)  # it may wait in a report
            self._thread.join(_CLOSING_SECONDS)

    def _train(self, devices: _Devices) -> None:
        try:
            devices.take_over()
            self._run(self.report)
        except _Ended:
            pass
        except BaseException as error:
            self._error = error
        self._reported.put(False)

    def report(self, metrics: Any) -> None:
        """Hand over what was reported, and wait until the training is to go on."""
        if not self.ended.is_set():
            self.line = metrics
            self._reported.put(True)
            self._to_train.get()
        if self.ended.is_set():
            raise _Ended
