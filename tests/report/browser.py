"""A real browser without a driver: Chromium over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# Chromium reads commands at file descriptor 3 and answers at 4.
_START = (
    "import os, sys\n"
    "os.dup2(int(sys.argv[1]), 3)\nos.dup2(int(sys.argv[2]), 4)\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)
_PATIENCE = 90.0


def find_chromium() -> str | None:
    """Where a Chromium is installed, if one is."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """One browser process; pages are opened in it one after the other."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, from_browser = os.pipe(), os.pipe()
        # Out of the way of the two numbers that the browser expects.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_browser[0], from_browser[1])]
        command = [sys.executable, "-c", _START, *map(str, ends), program, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={self._profile.name}"],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (*ends, to_browser[0], from_browser[1]):
            os.close(fd)
        self._write, self._read = to_browser[1], from_browser[0]
        self._buffer = b""
        self._last = 0
        self._events: list[dict[str, Any]] = []

    def close(self) -> None:
        """Ends the browser."""
        self._send("Browser.close", {}, None)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def _send(self, method: str, parameters: dict[str, Any], session: str | None) -> int:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return self._last

    def call(
        self, method: str, parameters: dict[str, Any] | None = None, session: str | None = None
    ) -> Any:
        """Calls a method of the protocol and waits for its answer; events are kept."""
        number = self._send(method, parameters or {}, session)
        while True:
            message = self._receive()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._events.append(message)

    def wait_for(self, method: str) -> None:
        """Waits until an event has come."""
        while not any(event.get("method") == method for event in self._events):
            self._events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0))
            chunk = os.read(self._read, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError("the browser does not answer")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(
        self,
        path: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
    ) -> Page:
        """Opens a file in a page of its own, and waits until it is loaded."""
        self._events.clear()
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, target, session["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
        page.call("Emulation.setScriptExecutionDisabled", {"value": not scripts})
        page.call("Page.navigate", {"url": path.resolve().as_uri()})
        self.wait_for("Page.loadEventFired")
        return page

    def take_events(self, session: str) -> list[dict[str, Any]]:
        """All events of a page so far."""
        return [event for event in self._events if event.get("sessionId") == session]


class Page:
    """An open page."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser, self._target, self._session = browser, target, session

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> Any:
        """Calls a method of the protocol on this page."""
        return self._browser.call(method, parameters, self._session)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.call(
            "Runtime.evaluate",
            {"expression": expression, "returnByValue": True, "awaitPromise": True},
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:500])
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, refusals by the content policy."""
        found = []
        for event in self._browser.take_events(self._session):
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"]))
            if event["method"] == "Runtime.consoleAPICalled":
                found.append(json.dumps(event["params"]["args"]))
            if event["method"] == "Log.entryAdded":
                found.append(event["params"]["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """The addresses of everything that the page asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self._browser.take_events(self._session)
            if event["method"] == "Network.requestWillBeSent"
        ]

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Stores a picture of what is seen, or of the whole page."""
        answer = self.call("Page.captureScreenshot", {"captureBeyondViewport": whole})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def print(self, path: Path) -> bytes:
        """Prints the page to PDF."""
        answer = self.call("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
        content = base64.b64decode(answer["data"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return content

    def close(self) -> None:
        """Closes the page."""
        self._browser.call("Target.closeTarget", {"targetId": self._target})
