"""Other processes of this machine that help with a work, and end with it.

What they share out is in a store: each takes what no other process holds.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from ranp.errors import UsageError
from ranp.user_code import describe_failure, load_module, loaded_modules


@dataclass(frozen=True)
class Worker:
    """Does a work in another process as this one would.

    It takes as many threads, and loads the same modules of the user, which may register methods,
    networks and data sets.
    """

    work: Callable[..., Any]
    threads: int = field(default_factory=torch.get_num_threads)
    modules: tuple[str, ...] = field(default_factory=loaded_modules)

    def __call__(self, *arguments: Any) -> Any:
        """Do the work."""
        torch.set_num_threads(self.threads)
        for name in self.modules:
            load_module(name, "--import")
        return self.work(*arguments)


@contextlib.contextmanager
def helpers(count: int, worker: Worker, *arguments: Any) -> Iterator[None]:
    """Start processes that do the same work as this one, as long as this one does it.

    What fails in one of them is left to this one, which meets it too.
    """
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_help, args=(_device(number), worker, arguments))
        for number in range(1, 1 + count)
    ]
    try:
        _start(processes)
        yield
    finally:
        started = [process for process in processes if process.pid is not None]
        for process in started:
            process.terminate()  # a run in training stops at a checkpoint
        for process in started:
            process.join()


def _start(processes: Sequence[BaseProcess]) -> None:
    try:
        for process in processes:
            process.start()
    except OSError:
        raise
    except Exception as error:  # pickle has many for what it cannot send
        raise UsageError(
            "with several jobs, other processes must find your functions by name, got "
            f"{describe_failure(error)}; define them at the top level of a module, decorators "
            "first and functools.partial last, or use jobs=1"
        ) from error


def _device(number: int) -> str | None:
    """Return the GPU of a process, if there are several: each takes its turn."""
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return visible.split(",")[number % count] if count > 1 else None


def _help(device: str | None, worker: Worker, arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.getLogger("ranp").setLevel(logging.ERROR)  # the other process warns of the same
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    with contextlib.suppress(Exception, KeyboardInterrupt):
        worker(*arguments)


def _end_with_parent() -> None:
    """Stop this process, as a signal would, when the one that started it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
