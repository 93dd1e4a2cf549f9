"""Rows 31 and 38: a run directory has one owner; what launchers left in the environment is said."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from ranp.errors import UsageError
from ranp.files import LOCK, hold_directory
from ranp.schemas import read_epochs, read_file
from ranp.training.job import Job
from ranp.training.run import train
from tests.training.conftest import TINY

OPTIONS = "{in_channels: 1, classes: 3, levels: 2, base_width: 4}"

HOLD = """
import os, sys, time
from pathlib import Path
from ranp.files import hold_directory
with hold_directory(Path(sys.argv[1])) as owner:
    print(owner, flush=True)
    if len(sys.argv) > 2:
        child = os.fork()
        if child == 0:
            print(os.getpid(), flush=True)
    time.sleep(600)
"""


@contextmanager
def owner_of(directory, *options):
    """A process that holds a directory until it is killed, at the latest at the end."""
    command = [sys.executable, "-c", HOLD, directory, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "None\n"
        try:
            yield process
        finally:
            process.kill()


def test_row_31_a_second_process_is_refused_and_told_the_owner(tmp_path, crops, tiny):
    run = tmp_path / "run"
    run.mkdir()
    with owner_of(run) as owner:
        for resume in (False, True):
            with pytest.raises(UsageError) as error:
                train(Job(tiny(), run, crops), resume=resume)
            said = f"in use by process {owner.pid} on {platform.node()}"
            assert said in str(error.value)
        assert [path.name for path in run.iterdir()] == [LOCK]
    assert train(Job(tiny(epochs=1), run, crops))["epochs"] == 1  # it died, and let go


@pytest.mark.slow
@pytest.mark.parametrize("pair", range(20))
def test_row_31_of_two_starts_half_a_second_apart_one_trains(pair, tmp_path):
    """A job that is queued twice: both generate their data in the run's directory."""
    run = tmp_path / "run"
    settings = [f"{key}={value}" for key, value in {**TINY, "network.options": OPTIONS}.items()]
    command = [sys.executable, "-m", "ranp", "train", "hippocampus-unet3d", "--smoke"]
    command += ["--out", str(run), *(word for each in settings for word in ("--set", each))]
    starts = []
    for _ in range(2):
        starts.append(subprocess.Popen(command, stdout=-1, stderr=-1, text=True))
        time.sleep(0.5)
    said = [start.communicate()[1] for start in starts]
    owner, other = sorted(range(2), key=lambda each: starts[each].returncode)
    assert (starts[owner].returncode, starts[other].returncode) == (0, 2), said
    holds_a_run = "holds a run; continue it with --resume auto"  # the first had ended already
    named = f"in use by process {starts[owner].pid} on {platform.node()}"
    assert named in said[other] or holds_a_run in said[other]
    assert [line["epoch"] for line in read_epochs(run)] == [1, 2]
    cases = read_file(run / "data.json", "data")
    assert len(cases["train"]) + len(cases["validation"]) == 10


def test_row_31_workers_of_a_killed_process_do_not_hold_on(tmp_path):
    """A loader's workers are forked, and may outlive their parent for seconds."""
    with owner_of(tmp_path, "fork") as owner:
        child = int(owner.stdout.readline())
    try:
        with hold_directory(tmp_path) as holder:
            assert holder is None
        os.kill(child, 0)  # it lives
    finally:
        os.kill(child, 9)


@pytest.mark.parametrize(
    "stray", [{"RANK": "1"}, {"WORLD_SIZE": "4", "LOCAL_RANK": "2"}, {"SLURM_NTASKS": "8"}]
)
def test_row_38_stray_variables_are_ignored_with_a_note(
    stray, tmp_path, crops, tiny, monkeypatch, caplog
):
    for name, value in stray.items():
        monkeypatch.setenv(name, value)
    record = train(Job(tiny(epochs=1), tmp_path / "run", crops))
    assert record["processes"] == 1 and (tmp_path / "run" / "config.json").exists()
    assert all(f"{name}={value}" in caplog.text for name, value in stray.items())
    assert all(os.environ[name] == value for name, value in stray.items())


def test_row_38_torchrun_with_another_number_of_processes_is_refused(
    tmp_path, crops, tiny, monkeypatch
):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="torchrun started 2 processes and the run has 1"):
        train(Job(tiny(), tmp_path / "run", crops))
    assert not (tmp_path / "run").exists()
