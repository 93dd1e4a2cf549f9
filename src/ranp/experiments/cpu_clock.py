"""CPU time of a run, which does not count other processes of the machine."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ranp.files import write_text
from ranp.training.listeners import Listener


class CpuClock(Listener):
    """Adds up the CPU time of a run over its interruptions, to the last whole epoch.

    Attributes:
        seconds: CPU time so far.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = float(json.loads(path.read_bytes())) if path.exists() else 0.0
        self._began = time.process_time()
        self.seconds = self._before

    def __enter__(self) -> CpuClock:
        self._began = time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self._store()

    def on_epoch_end(self, line: Mapping[str, Any]) -> None:
        """Store the time: what a kill loses is computed again, and counted then."""
        self._store()

    def _store(self) -> None:
        self.seconds = self._before + time.process_time() - self._began
        write_text(self._path, json.dumps(self.seconds))
