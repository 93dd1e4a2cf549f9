"""`ranp report`, and the report that `ranp prune` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranp.cli import main
from ranp.files import read_sealed_json, sha256


@pytest.fixture
def ranp(monkeypatch, capsys):
    """Runs a command as the console script does, at the project's root."""
    monkeypatch.chdir(Path(__file__).parents[2])

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["ranp", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return run


def test_prune_writes_its_report_and_report_makes_the_same_again(ranp, tmp_path):
    network = ["tests.cli.factories:small", "--input", "1,1,8,8,8"]
    data = ["--data", "tests.cli.factories:batches", "--seed", 3]
    out = tmp_path / "run"
    code, _, messages = ranp("prune", *network, *data, "--sparsity", 0.4, "--out", out)
    assert code == 0, messages
    assert str(out / "report.html") in messages
    record = read_sealed_json(out / "pruning.json", "record")
    assert record["command"].startswith("ranp prune tests.cli.factories:small --input 1,1,8,8,8")
    assert record["settings"]["seed"] == 3
    for name in ("plan.json", "scores.safetensors", "weights.safetensors"):
        assert record["files"][name] == sha256((out / name).read_bytes())
    page = (out / "report.html").read_text()

    code, printed, _ = ranp("report", out, "--out", tmp_path / "again.html")
    assert code == 0 and printed.strip() == str(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == page


def test_a_run_that_is_none_is_refused_in_one_line(ranp, tmp_path):
    code, _, message = ranp("report", tmp_path)
    assert code == 2
    assert message.count("\n") == 1 and "ranp prune" in message
