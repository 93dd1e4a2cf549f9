from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranp.errors import IntegrityError, UsageError
from ranp.files import (
    atomic_write,
    ensure_directory,
    load_tensors,
    read_sealed_json,
    save_tensors,
    write_sealed_json,
)


def test_an_error_leaves_the_old_file_and_no_temporary(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half of the new")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_the_mode_is_that_of_an_ordinary_file(tmp_path):
    with atomic_write(tmp_path / "atomic") as file:
        file.write(b"x")
    (tmp_path / "ordinary").write_bytes(b"x")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_stale_temporaries_go_and_living_ones_stay(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with atomic_write(tmp_path / "a.txt") as file:
        (writing,) = tmp_path.iterdir()
        prefix = writing.name.partition(f"-{os.getpid()}-")[0]
        file.write(b"x")
        ensure_directory(tmp_path)  # another thread of ours
        assert writing.exists()
    (tmp_path / "a.txt").unlink()
    (tmp_path / f"{prefix}-{dead.pid}-abc").write_text("left behind")
    (tmp_path / f"{prefix}-{os.getpid()}-abc").write_text("left by a process of this number")
    living = tmp_path / f"{prefix}-{os.getppid()}-abc"
    living.write_text("of another process")
    ensure_directory(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [living.name]


def test_row_32_temporaries_of_writers_on_other_hosts_stay(tmp_path):
    """Process numbers of another host or namespace say nothing here; after a week they go."""
    other, old = (tmp_path / f".ranp-tmp-{name}-1-abc" for name in ("0123456789ab", "before"))
    for path in (other, old):
        path.write_text("being written")
    os.utime(old, (0, 0))
    directory = tmp_path / ".ranp-tmp-0123456789ab-2-abc"
    directory.mkdir()
    os.utime(directory, (0, 0))
    ensure_directory(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([other, directory])


WRITE = """
import sys
from pathlib import Path
from ranp.files import atomic_write
with atomic_write(Path(sys.argv[1])) as file:
    file.write(b"all")
    print("writing", flush=True)
    sys.stdin.readline()
"""


def test_row_32_a_writer_in_another_namespace_is_left_alone(tmp_path):
    """Its process number is taken by another process here, or by none."""
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"]).returncode:
        pytest.skip("no namespaces can be made here")
    command = [*apart, sys.executable, "-c", WRITE, str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as writer:
        assert writer.stdout.readline() == "writing\n"
        (temporary,) = tmp_path.iterdir()
        ensure_directory(tmp_path)
        assert list(tmp_path.iterdir()) == [temporary]
        writer.communicate("\n")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"all"


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another"):
        ensure_directory(tmp_path / "file" / "below")
    with pytest.raises(UsageError, match=r"null .*; choose another"):
        ensure_directory(tmp_path / "a\0b")
    with pytest.raises(UsageError, match="choose another"), atomic_write(tmp_path / "file" / "x"):
        pass


def test_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    write_sealed_json(path, {"a": 1})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_sealed_json(path, {"a": 2})
    assert read_sealed_json(path, "plan") == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 1


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.floats(-1e9, 1e9))))
def test_sealed_json_comes_back(tmp_path_factory, content):
    content.pop("sha256", None)
    path = tmp_path_factory.mktemp("sealed") / "x.json"
    write_sealed_json(path, content)
    assert read_sealed_json(path, "thing") == content


def test_no_mutation_of_a_sealed_json_is_read(tmp_path):
    path = tmp_path / "plan.json"
    content = {"kind": "plan", "layers": [{"name": "a", "kept": list(range(40))}], "x": 0.1}
    write_sealed_json(path, content)
    good = path.read_bytes()
    generator = random.Random(0)
    for _ in range(1000):
        damaged = bytearray(good)
        damaged[generator.randrange(len(good))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        try:
            found = read_sealed_json(path, "plan")
        except IntegrityError:
            continue
        # White space outside of strings carries nothing; anything else must be refused.
        assert found == content
        assert json.loads(damaged)["sha256"] == json.loads(good)["sha256"]


def test_no_mutation_of_tensors_is_read(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.tensor([True, False])}
    save_tensors(path, tensors, {"kind": "weights"})
    found, metadata = load_tensors(path, "weights")
    assert metadata == {"kind": "weights"}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    good = path.read_bytes()
    generator = random.Random(0)
    for _ in range(1000):
        damaged = bytearray(good)
        damaged[generator.randrange(len(good))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError):
            load_tensors(path, "weights")


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 100, b"\xff" * 8 + b"{}", b"PK\x03\x04 a pickle"]
)
def test_foreign_files_are_refused(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(IntegrityError):
        load_tensors(path, "weights")


def test_a_pickle_is_never_executed(tmp_path):
    canary = tmp_path / "canary"
    evil = f"cos\nsystem\n(S'touch {canary}'\ntR.".encode()
    path = tmp_path / "weights.safetensors"
    path.write_bytes(evil)
    with pytest.raises(IntegrityError):
        load_tensors(path, "weights")
    assert not canary.exists()


@pytest.mark.slow
def test_kills_while_saving_never_tear_a_file(tmp_path):
    """200 kills at random moments: the file is always an old or a new one."""
    path = tmp_path / "x.safetensors"
    program = (
        "import sys, torch\n"
        "from ranp.files import save_tensors\n"
        "i = 0\n"
        "while True:\n"
        "    save_tensors(sys.argv[1], {'a': torch.full((300_000,), float(i))}, {})\n"
        "    print(i, flush=True)\n"
        "    i += 1\n"
    )
    generator = random.Random(0)
    for _ in range(200):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()  # the first save is done: it is saving again
        time.sleep(generator.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        tensors, _ = load_tensors(path, "weights")
        assert tensors["a"].unique().numel() == 1
    ensure_directory(tmp_path)
    assert [p.name for p in Path(tmp_path).iterdir()] == ["x.safetensors"]
