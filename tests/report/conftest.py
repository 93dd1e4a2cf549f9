from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.browser import Browser, find_chromium

SCREENSHOTS = Path(__file__).parents[2] / "out" / "screenshots"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    browser = Browser(program)
    yield browser
    browser.close()
