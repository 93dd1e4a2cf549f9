"""Measured times that are kept: of the same work on the same machine with the same software."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ranp.errors import IntegrityError
from ranp.files import json_sha256, write_sealed_json
from ranp.resources.machine import BUSY, others_running
from ranp.schemas import read_file

_KEY_DIGITS = 24


def cache_directory() -> Path:
    """`RANP_CACHE`, or `ranp` in the user's cache directory."""
    if "RANP_CACHE" in os.environ:
        return Path(os.environ["RANP_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ranp"


def read_measured(path: Path, kind: str) -> dict[str, Any] | None:
    """Read a file of the cache; None if there is none. A damaged one is removed."""
    if path.exists():
        try:
            return read_file(path, kind)
        except IntegrityError:
            path.unlink(missing_ok=True)  # it can be measured again
    return None


def cache_key(content: Mapping[str, Any]) -> str:
    """Return a file name, without suffix, for all that a measurement depends on."""
    return json_sha256(dict(content))[:_KEY_DIGITS]


class TimingCache:
    """Times by what was timed, one sealed file each, so that processes can share them.

    What is measured while others use the machine is returned, but not stored. Without a directory
    they are in the user's cache.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = (cache_directory() if directory is None else directory) / "timings"

    @cached_property
    def _is_quiet(self) -> bool:
        return others_running() <= BUSY

    def get(
        self, what: Mapping[str, Any], measure: Callable[[], dict[str, float]]
    ) -> dict[str, float]:
        """Return the times of work, the machine included in `what`; measured if not known."""
        path = self.directory / f"{cache_key(what)}.json"
        known = read_measured(path, "timing")
        if known is not None and cache_key(known["what"]) == path.stem:
            return dict(known["seconds"])
        is_quiet = self._is_quiet  # looked at before, as measuring would be taken for others
        seconds = measure()
        if not is_quiet:
            return seconds
        content = {"kind": "timing", "schema": 1, "what": dict(what), "seconds": seconds}
        write_sealed_json(path, content)
        return seconds
