"""`ranp doctor`: what it prints."""

from __future__ import annotations

import pytest

from ranp.speed.doctor import Diagnosis, Finding


@pytest.fixture(autouse=True)
def known_machine(monkeypatch):
    """As if one trap had been found and one not."""
    findings = (
        Finding("cheap", True, "2 ms against 1 ms", "do this", 2.0),
        Finding("dear", True, "9 ms against 1 ms", "do that", 9.0),
        Finding("nothing", False, "1 ms against 1 ms", "", 1.0),
    )
    machine = {"device": "[a] processor", "memory_bytes": 8 * 2**30, "threads": 2}
    monkeypatch.setattr("ranp.speed.doctor.diagnose", lambda: Diagnosis(machine, findings))


def test_traps_come_first_and_the_dearest_of_them(ranp):
    done = ranp("doctor")
    assert done.code == 0
    places = [done.out.index(text) for text in ("8.0 GiB", "dear (9.0 x)", "do that", "cheap")]
    assert places == sorted(places) and done.out.index("nothing") > places[-1]
    assert "[a] processor" in done.out
    assert "ranp bench" in done.err


def test_json_holds_everything(ranp):
    found = ranp("doctor", "--json").json
    assert found["machine"]["threads"] == 2
    assert [f["name"] for f in found["findings"]] == ["cheap", "dear", "nothing"]
