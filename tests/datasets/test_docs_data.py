"""The examples of docs/data.md run."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from ranp.cli.data import app
from ranp.datasets import synthesise

PAGE = (Path(__file__).parents[2] / "docs/data.md").read_text()


def test_python_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    synthesise("brats", "BraTS2018", cases=5, size=24, seed=0)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "docs/data.md", "exec"), {})


def test_console_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ ranp data (.*)$", PAGE, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["synth", "verify", "show"]
    for command in commands:
        result = CliRunner().invoke(app, command.split())
        assert result.exit_code == 0, result.output
    assert Path("phantoms.png").exists()


def test_pictures_exist():
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", PAGE)
    assert len(pictures) == 4
    for picture in pictures:
        assert (Path(__file__).parents[2] / "docs" / picture).is_file()
