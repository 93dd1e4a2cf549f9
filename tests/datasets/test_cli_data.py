from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ranp.cli.data import app
from ranp.datasets import DATASETS, draw_cases, synthetic_cases
from ranp.errors import UsageError

PNG = b"\x89PNG\r\n\x1a\n"


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("cli")
    for kind in DATASETS:
        result = run("synth", kind, root / kind, "--cases", 10, "--size", 32, "--seed", 1)
        assert result.exit_code == 0, result.output
        assert result.stdout == f"10 synthetic {kind} cases in {root / kind}\n"
        assert result.stderr == f"Next: ranp data verify {kind} {root / kind}\n"
    return root


@pytest.mark.parametrize("kind", DATASETS)
def test_verify_says_that_all_is_well(kind, written):
    result = run("verify", kind, written / kind, "--workers", 1)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].endswith("10 cases")
    assert result.stdout.splitlines()[-1] == "no problems"
    assert result.stderr.startswith("Next: ranp data show")


@pytest.mark.parametrize("kind", DATASETS)
def test_show_draws_a_picture(kind, written, tmp_path):
    picture = tmp_path / "x.png"
    result = run(
        "show", kind, written / kind, "--size", 32, "--cases", 2, "--out", picture, "--json"
    )
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(PNG)
    assert picture.stat().st_size > 4000
    shown = json.loads(result.stdout)
    assert shown["picture"] == str(picture)
    assert len(set(shown["cases"])) == 2


def test_drawn_cases_are_spread_evenly(tmp_path):
    cases = synthetic_cases("volumes", size=8, samples=8, seed=0)
    drawn = draw_cases("volumes", cases, 4, tmp_path / "four.png")
    assert drawn == ["volumes-00000", "volumes-00002", "volumes-00004", "volumes-00006"]
    assert draw_cases("volumes", cases, 100, tmp_path / "all.png") == list(cases.ids)


def test_verify_json_and_exit_code_4(tmp_path):
    run("synth", "hippocampus", tmp_path / "d", "--cases", 3, "--size", 24, "--quiet")
    damaged = next((tmp_path / "d/imagesTr").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-20])
    result = run("verify", "hippocampus", tmp_path / "d", "--json", "--quiet")
    assert result.exit_code == 4
    report = json.loads(result.stdout)
    assert not report["ok"]
    assert [problem["path"] for problem in report["problems"]] == [f"imagesTr/{damaged.name}"]
    assert result.stderr == ""
    plain = run("verify", "hippocampus", tmp_path / "d")
    assert plain.exit_code == 4
    assert f"WRONG imagesTr/{damaged.name}" in plain.stdout
    assert "Next: fix" in plain.stderr


def test_wrong_use_ends_with_our_errors(tmp_path):
    assert isinstance(run("synth", "brast", tmp_path / "x").exception, UsageError)
    assert isinstance(run("verify", "brats", tmp_path / "absent").exception, UsageError)


def test_module_imports_neither_torch_nor_numpy():
    script = "import sys, ranp.cli.data; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
