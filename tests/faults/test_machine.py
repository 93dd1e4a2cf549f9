"""Rows 40, 42 and 43: paths out of recipes, other machines, ASCII, huge values, little memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest
import torch
import yaml

from ranp.datasets import synthesise
from ranp.errors import UsageError
from ranp.files import write_text
from ranp.training.config import load_config
from ranp.training.listeners import RunLog
from tests.fresh import run_fresh

RECIPE = "hippocampus-unet3d"


@pytest.mark.parametrize("name", ["../../x", "/x", "..", ".", "", "a\\b", "a\0b", "a\nb"])
def test_row_40_the_name_of_a_recipe_is_no_path(name, tmp_path):
    with pytest.raises(UsageError, match=r"'recipe' is .*: must be a name; leave out slashes"):
        load_config(RECIPE, changes={"recipe": name})
    path = tmp_path / "own.yaml"
    whole = {**load_config(RECIPE).model_dump(mode="json"), "recipe": name}
    path.write_text(yaml.safe_dump(whole))
    with pytest.raises(UsageError, match=r"'recipe' is .*: must be a name"):
        load_config(str(path))


def test_row_40_names_with_points_and_spaces_are_no_paths():
    assert load_config(RECIPE, changes={"recipe": "my run.v2"}).recipe == "my run.v2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: " + 600 * "[" + 600 * "]", "nested too deeply"),
        ("a: 2020-99-99", "is not YAML: month must be"),
        ("a: " + 5000 * "1", "is not YAML: Exceeds the limit"),
        ("a: [", "is not YAML"),
    ],
)
def test_row_40_yaml_that_cannot_be_read_is_refused_in_one_line(text, expected, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=expected) as error:
        load_config(str(path))
    assert len(str(error.value)) < 500
    with pytest.raises(UsageError) as error:
        load_config(RECIPE, overrides=[f"network.options={text[3:]}"])
    assert len(str(error.value)) < 700


@pytest.mark.parametrize(
    "change",
    [
        *({f"data.{key}": 10**8} for key in ("size", "validation_size", "generated_size", "cases")),
        {"batch": 10**30},
        {"seed": 10**30},
        {"epochs": 10**30},
        {"pruning.size": 10**8},
    ],
    ids=str,
)
def test_row_43_huge_numbers_are_refused(change):
    with pytest.raises(UsageError, match="should be less than"):
        load_config(RECIPE, changes=change)


@pytest.mark.parametrize("kind", ["brats", "hippocampus", "shapenet", "ucf101"])
def test_row_43_huge_data_is_refused(kind, tmp_path):
    with pytest.raises(UsageError, match="size at most 2048, got 1 of size 100000"):
        synthesise(kind, tmp_path / "data", cases=1, size=100000, seed=0)


LIMITED = """
import resource, sys
import ranp.cli, ranp.models
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
pages = int(open("/proc/self/statm").read().split()[0])
more = int(sys.argv[1]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
sys.argv = ["ranp", *sys.argv[2:]]
ranp.cli.main()
"""
LARGE = {
    "arrays of 34 GB": (64, "data synth brats data --size 2048 --cases 1"),
    "62 MB of weights": (32, "prune unet3d-shapenet --input 1,1,64,64,64 --sparsity 0.5 --out out"),
}


@pytest.mark.parametrize("name", LARGE)
def test_row_43_little_memory_is_said_in_one_line(name, tmp_path):
    """What a command needs is more than the address space has left, on every machine."""
    megabytes, command = LARGE[name]
    done = run_fresh(LIMITED, megabytes, *command.split(), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("ranp: not enough memory (") and done.stderr.count("\n") == 1


def test_row_43_no_memory_for_torch_itself_is_said_in_one_line(tmp_path):
    """Its libraries alone have more than 400 MB; where they just fit, it is torch that aborts."""
    limit = 200 * 2**20
    done = subprocess.run(
        [sys.executable, "-m", "ranp", "profile", "unet3d-shapenet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("ranp: not enough memory (") and done.stderr.count("\n") == 1


def test_row_43_a_thread_that_cannot_start_is_a_want_of_memory(tmp_path):
    program = LIMITED.replace("ranp.cli.main()", START)
    done = run_fresh(program, 0, cwd=tmp_path)
    assert done.stdout.strip() == "RuntimeError True", done.stderr


START = """
import threading
from ranp.errors import is_out_of_memory
threading.stack_size(2**30)
try:
    threading.Thread(target=print).start()
except Exception as error:
    print(type(error).__name__, is_out_of_memory(error))
"""


def test_row_43_names_that_the_locale_does_not_know(tmp_path):
    """Where the locale is ASCII, an umlaut comes in as two surrogates."""
    name = "rün".encode().decode("ascii", "surrogateescape")
    write_text(tmp_path / "page.html", f"<h1>{name}</h1>")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "<h1>rün</h1>"
    log = RunLog(tmp_path, 1)
    log.note(name)
    assert "rün" in (tmp_path / "log.txt").read_text(encoding="utf-8")


SCRIPT = """
import sys
from torch import nn
import torch, ranp
batch = torch.randn(2, 1, 4, 4, 4), torch.ones(2, 4, 4, 4).long()
model = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 2, 1))
ranp.prune(model, [batch], nn.CrossEntropyLoss(), sparsity=0.25, floor=1).save(sys.argv[1])
sys.argv = ["ranp", "report", sys.argv[1]]
main()
"""


@pytest.mark.slow
def test_row_43_an_ascii_locale_a_read_only_home_and_few_files(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "HOME": str(home)}
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", "o ä"],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o ä" / "report.html").stat().st_size > 10_000


CHOICE = """
import sys, torch, ranp
from ranp.models import find_network
from torch import nn
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
x, y = torch.randn(2, 1, 16, 16, 16), torch.randint(3, (2, 16, 16, 16))
model = find_network("unet3d").build(in_channels=1, classes=3, levels=2, base_width=8)
result = ranp.prune(model, [(x, y)], nn.CrossEntropyLoss(), sparsity=0.5, floor=1)
print({name: layer.kept for name, layer in result.plan.layers.items()})
"""


OTHERS = [
    ({"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}, 1),
    ({"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}, 2),
    ({}, 1),
    ({}, 2),
    ({}, 4),
]


@pytest.mark.parametrize("machines", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_row_42_other_cpus_and_threads_give_the_same_plan(machines, capfd, monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["-c", "1"])
    exec(CHOICE, {})
    torch.set_num_threads(threads)
    here = capfd.readouterr().out.encode()
    for settings, threads in OTHERS[:machines]:
        command = [sys.executable, "-c", CHOICE, str(threads)]
        env = {**os.environ, **settings}
        assert subprocess.run(command, env=env, capture_output=True, check=True).stdout == here
