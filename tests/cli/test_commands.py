from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
import typer
from torch import nn

import ranp as library
from ranp.cli import app
from ranp.cli._networks import Network
from ranp.cli._options import Device, Optimizer, ScoringOptions
from ranp.cli._scoring import open_source
from ranp.datasets import DATASETS
from ranp.errors import name_settings, settings_as_options
from ranp.models import find_network, network_names
from ranp.progress import ScoringBar, format_rate
from ranp.pruning import Scores
from ranp.resources import training_memory
from tests.cli import factories

SMALL = "tests.cli.factories:small"
INPUT = ("--input", "1,1,8,8,8")
DATA = ("--data", "tests.cli.factories:batches")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def test_help_names_every_network_and_data_set_of_the_package():
    commands = typer.main.get_command(app).commands
    networks = commands["prune"].params[0].help
    kinds = commands["data"].commands["synth"].params[0].help
    for name in network_names():
        assert name in networks or not find_network(name).build.__module__.startswith("ranp.")
    for name, dataset in DATASETS.items():
        assert name in kinds or not dataset.inventory.__module__.startswith("ranp.")


def test_help_does_not_import_torch():
    program = (
        "import sys\nsys.argv = ['ranp', '--help']\nfrom ranp.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'monai', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in ("profile", "prune", "score", "plan", "search", "inspect", "methods", "data"):
        assert command in done.stdout


def test_options_name_what_memory_can_be_predicted_for():
    assert get_args(Optimizer) == get_args(training_memory.Optimizer)
    assert get_args(Device) == get_args(training_memory.Device)


def test_version(ranp):
    assert ranp("--version").out == f"ranp {library.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["prune", "unet3d-shapenet", "--method", "layerwise", "--sparsity", "1.2"], 2, "1.2"),
        (["profile", "unet3d-shapnet"], 2, "Did you mean 'unet3d-shapenet'?"),
        (["profile", "no.such.module:net", *INPUT], 2, "cannot import 'no.such.module'"),
        (["profile", "tests.cli.factories:smal", *INPUT], 2, "Did you mean 'small'?"),
        (["profile", "tests.cli.factories:raises", *INPUT], 2, "RuntimeError: no such luck"),
        (["profile", "tests.cli.factories:number", *INPUT], 2, "must be an nn.Module, got int"),
        (["profile", "tests.cli.factories:NOT_A_FUNCTION", *INPUT], 2, "cannot be called"),
        (["profile", SMALL], 2, "--input"),
        (["profile", "unet3d-shapenet", "--input", "1,64,64"], 2, "must have 5 dimensions"),
        (["profile", "unet3d-shapenet", "--input", "1,3,64,64,64"], 2, "must be 1 for unet3d"),
        (["profile", "unet3d-shapenet", "--input", "1,1,a"], 2, "--input must be whole numbers"),
        (["profile", SMALL, "--input", "1,2,8,8,8"], 5, "check the example input"),
        (["prune", SMALL, *INPUT, "--method", "rnap-f", "--sparsity", ".5"], 2, "'ranp-f'"),
        (["prune", SMALL, *INPUT, "--sparsity", ".5"], 2, "--data"),
        (["prune", SMALL, *INPUT, *DATA, "--sparsity", ".9"], 3, "largest feasible sparsity is"),
        (["inspect", SMALL, *INPUT, "--protect", "9"], 2, "is called '9'"),
        (["profile", SMALL, *INPUT, "--convention", "mac"], 2, "'macs'"),
        (["nonsense"], 2, "nonsense"),
        (["search", SMALL, *INPUT, *DATA, "--seed", "-1"], 2, "'--seed'"),
        (["search", SMALL, *INPUT, *DATA, "--seed", 2**32], 2, "'--seed'"),
        (["search", SMALL, *INPUT, "--data", "tests.cli.factories:number"], 2, "one, got int"),
        (["search", SMALL, *INPUT, *DATA, "--loss", "tests.cli.factories:NOT_A_FUNCTION"], 2,
         "must be a function(output, target), got"),
        (["prune", SMALL, *INPUT, *DATA, "--sparsity", ".5", "--lambda", "inf"], 2, "lambda"),
        (["search", SMALL, *INPUT, *DATA, "--lambda", "nan"], 2, "lambda"),
        (["score", "unet3d-shapenet", "--batch", "9"], 2, "give --samples 9 or more"),
        (["score", "unet3d-shapenet", "--size", "0"], 2, "'--size'"),
        (["score", SMALL, *INPUT, *DATA, "--out", "/dev/null/s"], 2, "cannot use '/dev/null'"),
    ],
)  # fmt: skip
def test_errors_are_one_line(ranp, arguments, code, words):
    outcome = ranp(*arguments)
    assert outcome.code == code
    assert outcome.out == ""
    assert outcome.err.startswith("ranp: ") or "\nranp: " in outcome.err
    # Only what the data and the scores say can be found wrong after scoring has begun.
    scored = code == 3
    assert len(outcome.err.splitlines()) == (2 if scored else 1)
    assert words in outcome.err


@pytest.mark.parametrize(
    ("data", "loss", "code", "words"),
    [
        ("no_batches", None, 2, "is empty"),
        ("poisoned_batches", None, 4, "batch 3"),
        ("batches", "unreduced", 2, "(1, 8, 8, 8)"),
        ("batches", "number", 2, "the forward pass or the loss fails: TypeError"),
        ("float_targets", None, 2, "give --loss package.module:function(output, target)"),
        ("labels_with_a_channel", None, 2, "does not take what the network returns"),
        (
            "broken_loader",
            None,
            2,
            "the loader, asked for batch 2, fails: OSError: disk on fire (factories.py:",
        ),
    ],
)
def test_bad_batches(ranp, tmp_path, data, loss, code, words):
    options = ["--loss", f"tests.cli.factories:{loss}"] if loss else []
    out = tmp_path / "scores.safetensors"
    outcome = ranp(
        "score", SMALL, *INPUT, "--data", f"tests.cli.factories:{data}", *options, "--out", out
    )
    assert outcome.code == code
    assert words in outcome.err.splitlines()[-1]
    assert not out.exists()


def test_a_sample_that_leaves_batch_norm_one_value_is_no_internal_error(ranp, tmp_path):
    network = "tests.cli.factories:pooled"
    outcome = ranp("score", network, *INPUT, *DATA, "--out", tmp_path / "scores.safetensors")
    assert outcome.code == 2
    assert "Expected more than 1 value per channel" in outcome.err


def test_score_plan_and_apply(ranp, tmp_path):
    scores, plan = tmp_path / "scores.safetensors", tmp_path / "plan.json"
    scored = ranp("score", SMALL, *INPUT, *DATA, "--out", scores, "--json")
    assert scored.json["scores"] == str(scores)
    assert (scored.json["batches"], scored.json["neurons"]) == (4, 16)
    assert [layer["neurons"] for layer in scored.json["layers"]] == [6, 8, 2]
    planned = ranp("plan", SMALL, scores, "--sparsity", ".5", *INPUT, "--out", plan, "--json")
    assert planned.code == 0
    # int(16 x 0.5) = 8 are retained over all layers; the last layer's 2 are kept in any case.
    kept = {layer["name"]: layer["kept"] for layer in planned.json["layers"]}
    assert kept["4"] == 2
    assert 8 <= sum(kept.values()) <= 10
    slim = library.Plan.load(plan).apply(factories.small())
    assert [slim[i].out_channels for i in (0, 2, 4)] == [kept["0"], kept["2"], 2]
    # Everything at once gives the same plan as one step after the other.
    pruned = ranp("prune", SMALL, *INPUT, *DATA, "--sparsity", ".5", "--json")
    assert {**pruned.json, "plan": str(plan)} == planned.json
    assert pruned.json["full"] == scored.json["full"]


@pytest.mark.parametrize(
    "command", [("prune", "--sparsity", ".5"), ("fit", "--params", "50%"), ("search",)]
)
def test_samples_of_a_batch_one_by_one(ranp, command):
    name, *options = command
    shape = ("--input", "1,8,8,8") if name == "fit" else INPUT  # a sample's, or a batch's
    single = ranp(name, SMALL, *shape, *DATA, *options, "--json").json
    together = ("--data", "tests.cli.factories:one_batch")
    found = ranp(name, SMALL, *shape, *together, "--per", "sample", *options, "--json").json
    for key in ("layers", "sparsity", "max_sparsity"):
        assert found.get(key) == single.get(key)
    whole = ranp("score", SMALL, *INPUT, *together, "--per", "voxel")
    assert whole.code == 2


def test_scoring_stops_by_itself(ranp):
    command = ("prune", SMALL, *INPUT, "--sparsity", ".5", "--auto", "--json")
    few = ranp(*command, *DATA)
    assert "4 batches are too few to say" in few.err
    many = ranp(*command, "--data", "tests.cli.factories:many_batches")
    assert "ettled: after " in many.err
    found = many.json["settings"]["scoring"]
    assert 8 <= found["batches"] <= 16
    assert f"agrees by {100 * found['agreement']:.1f} %" in many.err


def test_prune_writes_what_apply_gives(ranp, tmp_path):
    outcome = ranp("prune", SMALL, *INPUT, *DATA, "--sparsity", ".5", "--out", tmp_path)
    assert outcome.code == 0
    assert {p.name for p in tmp_path.iterdir()} == {
        "plan.json", "pruning.json", "report.html", "scores.safetensors",
        "weights.safetensors",
    }  # fmt: skip
    plan = library.Plan.load(tmp_path / "plan.json")
    assert plan.network == SMALL
    slim, other = plan.apply(factories.small()), plan.apply(factories.small(), seed=1)
    assert not torch.equal(slim[0].weight, other[0].weight)
    library.load_weights(other, tmp_path / "weights.safetensors")
    assert torch.equal(slim[0].weight, other[0].weight)


def test_search(ranp, tmp_path):
    scores = tmp_path / "scores.safetensors"
    ranp("score", SMALL, *INPUT, *DATA, "--out", scores)
    outcome = ranp("search", SMALL, *INPUT, "--scores", scores, "--json")
    largest = outcome.json["max_sparsity"]
    pruned = ranp("prune", SMALL, *INPUT, *DATA, "--sparsity", largest, "--json")
    found = {"max_sparsity": largest, "max_sparsity_coupled": largest, "rule": "paper"}
    made = dict(pruned.json)
    del made["shortfall"], made["warnings"]
    assert outcome.json == {**made, **found}
    assert pruned.json["shortfall"].startswith("75.0 % of the neurons are removed, 87.5 % were")
    arguments = ["plan", SMALL, scores, *INPUT, "--out", tmp_path / "p.json", "--sparsity"]
    assert ranp(*arguments, largest).code == 0
    assert ranp(*arguments, largest + 1.01e-4).code == 3


def test_the_largest_sparsity_is_feasible_as_printed(ranp):
    network = ("tests.cli.factories:ten_neurons", *INPUT, "--method", "random")
    largest = ranp("search", *network, "--json").json["max_sparsity"]
    assert f"{largest:.4f}" == "0.9000" and largest < 0.9
    printed = ranp("search", *network).out.split()[-1]
    assert printed == "0.8999"
    assert ranp("prune", *network, "--sparsity", printed).code == 0
    refused = ranp("prune", *network, "--sparsity", "0.9000")
    assert refused.code == 3 and "with --floor auto" in refused.err


def test_infeasible_as_json(ranp, tmp_path):
    pruned = ranp("prune", SMALL, *INPUT, *DATA, "--sparsity", ".95", "--out", tmp_path, "--json")
    assert pruned.code == 3
    assert pruned.json["feasible"] is False
    assert 0 < pruned.json["max_sparsity"] < 0.95
    scores = tmp_path / "scores.safetensors"
    planned = ranp("plan", SMALL, scores, *INPUT, "--sparsity", ".95", "--json")
    assert (planned.code, planned.json) == (3, pruned.json)


def test_plan_at_random_has_a_seed(ranp, tmp_path):
    scores, plan = tmp_path / "scores.safetensors", tmp_path / "plan.json"
    ranp("score", SMALL, *INPUT, *DATA, "--out", scores)
    options = ("--method", "random", "--sparsity", ".5", "--json")
    kept = {}
    for seed in (0, 3):
        ranp("plan", SMALL, scores, *INPUT, *options, "--seed", seed, "--out", plan)
        kept[seed] = library.Plan.load(plan).layers
    assert kept[0] != kept[3]
    ranp("prune", SMALL, *INPUT, *options, "--seed", 3, "--out", tmp_path)
    assert library.Plan.load(plan).layers == kept[3]


def pasted(outcome, lead: str) -> list[str]:
    """The arguments of a command that a message names."""
    (line,) = [line for line in outcome.err.splitlines() if line.startswith(lead)]
    words = shlex.split(line.removeprefix(lead))
    assert words[0] == "ranp"
    return words[1:]


@pytest.mark.parametrize(
    "options", [(), ("--method", "magnitude", "--method", "ranp-f", "--protect", "2")]
)
def test_what_comes_next_can_be_pasted(ranp, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    scored = ranp("score", SMALL, *INPUT, *DATA, *options, "--out", "my scores.safetensors")
    searched = ranp(*pasted(scored, "Next: "), "--json")
    planned = ranp(*pasted(searched, "Next: "), "--json")
    assert (scored.code, searched.code, planned.code) == (0, 0, 0)
    found = planned.json
    assert found["method"] == searched.json["method"] == ("magnitude" if options else "ranp-f")
    assert found["sparsity"] == pytest.approx(0.8 * searched.json["max_sparsity"], abs=1e-4)
    kept = {layer["name"]: layer["kept"] for layer in found["layers"]}
    assert (kept["2"] == 8) == bool(options)


def test_prune_comes_after_a_search_without_scores(ranp):
    options = ("--lambda", "0", "--coupling", "sum", "--resource", "params", "--seed", "2")
    searched = ranp("search", SMALL, *INPUT, *DATA, *options, "--per", "sample")
    pruned = ranp(*pasted(searched, "Next: "), "--json")
    assert pruned.code == 0
    settings = pruned.json["settings"]
    assert [settings[key] for key in ("lambda", "coupling", "resource", "seed")] == [
        0, "sum", "params", 2,
    ]  # fmt: skip
    assert (settings["scoring"]["seed"], settings["scoring"]["per"]) == (2, "sample")


def test_titles_and_names_are_not_broken(ranp):
    shown = ranp("profile", SMALL, *INPUT, "--training").out.splitlines()
    assert [line.rstrip() for line in shown if "predicted" in line or "rules" in line] == [
        "Counted at the traced input size, by the paper's rules.", "A training step, predicted",
    ]  # fmt: skip
    deep = "tests.cli.factories:deep_names"
    shown = ranp("inspect", deep, *INPUT).out
    for name, module in factories.deep_names().named_modules():
        assert not isinstance(module, nn.Conv3d) or f"{name} " in shown
    assert "it is the network's output" in shown  # nor does that cut off what stands beside


def test_inspect(ranp):
    rows = ranp("inspect", SMALL, *INPUT, "--protect", "0", "--json").json["layers"]
    assert [row["removable"] for row in rows] == [0, 8, 0]
    assert rows[0]["why_kept"] == ["it is protected by the user"]
    assert rows[2]["why_kept"] == ["it is the network's output"]


def test_methods(ranp):
    rows = ranp("methods", "--json").json
    assert [row["name"] for row in rows] == list(library.METHODS)


SIGNALLED = ("--data", "tests.cli.factories:signalled_batches")


@pytest.fixture
def whole(ranp, tmp_path):
    """Averages over all batches, scored in one go."""
    out = tmp_path / "whole.safetensors"
    ranp("score", SMALL, *INPUT, *SIGNALLED, "--out", out)
    return library.Scores.load(out)


def assert_same(found: library.Scores, expected: library.Scores) -> None:
    assert found.settings == expected.settings
    assert found.batches == expected.batches == 4
    for name, values in expected.average("mpmg").items():
        assert found.average("mpmg")[name] == pytest.approx(values, rel=1e-12)


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_keeps_what_was_scored(ranp, tmp_path, monkeypatch, whole, number, code):
    """The process is signalled in its second batch; going on gives the scores of one go."""
    out = tmp_path / "my scores.safetensors"
    monkeypatch.setenv("TEST_SIGNAL", number)
    first = ranp("score", SMALL, *INPUT, *SIGNALLED, "--out", out)
    assert first.code == code
    assert library.Scores.load(out).batches == 2
    monkeypatch.delenv("TEST_SIGNAL")
    second = ranp(*pasted(first, "Interrupted. Score the rest: "), "--json")
    assert (second.code, second.json["batches"]) == (0, 4)
    assert_same(library.Scores.load(out), whole)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("prune", ("--sparsity", ".5", "--floor", "2", "--multiple", "2", "--lambda", "0")),
        ("prune", ("--sparsity", ".5", "--protect", "0", "--out", "a directory")),
        ("prune", ("--params", "50%", "--lambda", "0", "--protect", "0")),
        ("prune", ("--flops", "50%", "--floor", "2", "--out", "a directory")),
        ("search", ("--coupling", "max", "--resource", "memory")),
        ("fit", ("--params", "50%", "--batch", "2", "--method", "weighted")),
        ("fit", ("--params", "50%", "--out", "a directory")),
    ],
)
def test_no_command_loses_its_scores(ranp, tmp_path, monkeypatch, whole, name, options):
    has_out = "--out" in options
    monkeypatch.chdir(tmp_path)
    shape = ("--input", "1,8,8,8") if name == "fit" else INPUT
    command = (name, SMALL, *shape, *SIGNALLED, *options)
    anew = ranp(*command, "--json").json
    monkeypatch.setenv("TEST_SIGNAL", "SIGINT")
    kept = Path("a directory/scores.safetensors" if has_out else "interrupted-1.safetensors")
    stopped = ranp(*command, "--quiet")
    assert (stopped.code, stopped.out) == (130, "")
    assert library.Scores.load(kept).batches == 2
    if not has_out:  # never in the place of another file
        ranp(*command)
        assert Path("interrupted-2.safetensors").exists()
    monkeypatch.delenv("TEST_SIGNAL")

    going_on = pasted(stopped, "Continue with what was scored: ")
    early = ranp(*going_on, "--json")
    assert early.code == 0
    rest = ranp(*pasted(stopped, "Score the rest: "))
    assert rest.code == 0
    assert_same(library.Scores.load(kept), whole)
    late = ranp(*going_on, "--json").json
    assert late["sparsity"] == pytest.approx(anew["sparsity"], abs=1e-4)
    if name == "prune" and "--sparsity" not in options:  # goes on with `fit`, which rounds it up
        late["settings"]["sparsity"] = late["sparsity"] = anew["sparsity"]
    for key in ("layers", "sparsity", "settings", "method", "slim"):
        assert late[key] == anew[key]
    assert early.json["settings"]["scoring"]["batches"] == 2


@pytest.mark.parametrize("options", [("--sparsity", ".5"), ("--flops", "50%")])
def test_an_input_that_the_loader_told_is_in_the_next_command(ranp, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEST_SIGNAL", "SIGINT")
    stopped = ranp("prune", SMALL, *SIGNALLED, *options)
    monkeypatch.delenv("TEST_SIGNAL")
    early = ranp(*pasted(stopped, "Continue with what was scored: "), "--json")
    assert early.code == 0 and early.json["settings"]["scoring"]["batches"] == 2


def test_score_search_and_prune_take_the_input_of_ones_own_loader(ranp, tmp_path):
    out = tmp_path / "scores.safetensors"
    scored = ranp("score", SMALL, *DATA, "--out", out)
    searched = ranp(*pasted(scored, "Next: "))
    assert (scored.code, searched.code) == (0, 0)
    planned = ranp(*pasted(searched, "Next: "), "--out", tmp_path / "plan.json")
    assert planned.code == 0
    told = ranp("prune", SMALL, *DATA, "--flops", "50%", "--json").json
    said = ranp("prune", SMALL, *DATA, *INPUT, "--flops", "50%", "--json").json
    assert told["layers"] == said["layers"] and told["slim"] == said["slim"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--data", "tests.cli.factories:other_batches"), "'data' (tests.cli.factories:batches"),
        (("--loss", "tests.cli.factories:half_loss"), "'loss' (cross-entropy and"),
        (("--seed", "1"), "'seed' (0 and 1)"),
        (("--method", "snip"), "what was gathered"),
    ],
)
def test_scores_of_other_data_are_not_gone_on_with(ranp, tmp_path, options, words):
    out = tmp_path / "scores.safetensors"
    ranp("score", SMALL, *INPUT, *DATA, "--out", out)
    before = out.read_bytes()
    refused = ranp("score", SMALL, *INPUT, *DATA, *options, "--out", out, "--resume")
    assert refused.code == 2
    assert words in refused.err.splitlines()[-1]
    assert out.read_bytes() == before


@pytest.mark.parametrize("name", network_names())
def test_more_generated_samples_begin_with_the_fewer(name):
    spec = find_network(name)
    shape = (*spec.input_shape[:2], 8, 24, 24)
    network = Network(name, nn.Identity(), shape, spec)
    method = library.METHODS["ranp-f"]

    def source(samples: int, batch: int = 2, size: int = 24):
        options = ScoringOptions(samples=samples, size=size)
        return open_source(network, [method], options, batch=batch)

    few, many = source(5), source(9)
    # Whole batches, at most as many samples.
    assert (few.scoring.batches, many.scoring.batches) == (2, 4)
    assert few.scoring.source == many.scoring.source
    for a, b, _ in zip(few.batches.loader, many.batches.loader, range(2), strict=False):
        assert torch.equal(a["x"], b["x"]) and torch.equal(a["y"], b["y"])
    assert few.scoring.source != source(5, batch=1).scoring.source
    assert few.scoring.source != source(5, size=32).scoring.source


def test_progress_shows_rate_and_what_was_done_before(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    scores = Scores(batches=1, fan_in={}, sums={}, settings={}, fingerprint="")
    with ScoringBar() as bar:
        bar.on_start(done=6, total=8)
        bar.on_batch(scores)
        bar.on_batch(scores)
    shown = capsys.readouterr().err
    assert "8/8" in shown and "/s" in shown
    assert [format_rate(speed) for speed in (None, 12.34, 1.0, 0.25)] == [
        "", "12.3/s", "1.0/s", "4.0 s each",
    ]  # fmt: skip


def test_progress_of_a_resumed_scoring(ranp, tmp_path, monkeypatch):
    out = tmp_path / "scores.safetensors"
    monkeypatch.setenv("TEST_SIGNAL", "SIGINT")
    ranp("score", SMALL, *INPUT, *SIGNALLED, "--out", out)
    monkeypatch.delenv("TEST_SIGNAL")
    monkeypatch.setenv("FORCE_COLOR", "1")
    resumed = ranp("score", SMALL, *INPUT, *SIGNALLED, "--out", out, "--resume")
    assert "4/8" in resumed.err  # the loader has no length: 8 samples at the most


@pytest.mark.parametrize("command", ["profile", "inspect"])
def test_hints_can_be_pasted(ranp, command):
    shown = ranp(command, SMALL, *INPUT)
    (hint,) = [line for line in shown.err.splitlines() if line.startswith("Next: ranp ")]
    pruned = ranp(*shlex.split(hint)[2:], "--json")
    assert pruned.code == 0
    assert pruned.json["slim"]["gflops"] <= 0.1 * pruned.json["full"]["gflops"]


def test_prune_takes_budgets(ranp):
    asked = ranp("prune", SMALL, *INPUT, *DATA, "--params", "30%", "--json")
    assert asked.json["slim"]["param_mb"] <= 0.3 * asked.json["full"]["param_mb"]
    fitted = ranp("prune", SMALL, *INPUT, *DATA, "--memory", "70%", "--json")
    assert fitted.json["binding"] == "memory" and fitted.json["step"]["batch"] == 1
    pairs = ("--data", "tests.cli.factories:pairs_of_two", "--memory", "1GiB", "--json")
    assert ranp("prune", SMALL, *INPUT, *pairs).json["step"]["batch"] == 2
    assert ranp("prune", SMALL, *INPUT, *pairs, "--batch", "3").json["step"]["batch"] == 3
    assert ranp("prune", SMALL, *INPUT, *DATA, "--flops", "50%", "--sparsity", "0.5").code == 2
    nothing = ranp("prune", SMALL, *INPUT, *DATA)
    assert nothing.code == 2 and "such as --flops 10%" in nothing.err


def test_samples_bound_a_loader_of_ones_own_too(ranp, tmp_path):
    data = ("--data", "tests.cli.factories:many_batches")
    out = tmp_path / "scores.safetensors"
    assert ranp("score", SMALL, *INPUT, *data, "--out", out, "--json").json["batches"] == 8
    few = ranp("score", SMALL, *INPUT, *data, "--samples", "3", "--out", out, "--json")
    assert few.json["batches"] == 3
    whole = ("--data", "tests.cli.factories:one_batch", "--samples", "3")
    refused = ranp("score", SMALL, *INPUT, *whole, "--out", out)
    assert refused.code == 2 and "got 3 and 4" in refused.err


@pytest.mark.parametrize(
    ("loader", "about"),
    [
        ("batches", "with 4 batches of 1"),  # fewer than the 8 samples that are the default
        ("one_batch", "with 1 batch of 4"),
        ("signalled_batches", "with at most 8 batches of 1"),  # a generator has no length
    ],
)
def test_what_is_scored_with_is_said_as_far_as_it_is_known(ranp, loader, about):
    data = ("--data", f"tests.cli.factories:{loader}")
    assert f"{about} from" in ranp("prune", SMALL, *INPUT, *data, "--flops", "50%").err


def test_data_that_does_not_exist_is_called_missing(ranp):
    for name in (SMALL, "unet3d-shapenet"):
        shape = INPUT if name == SMALL else ()
        refused = ranp("prune", name, *shape, "--flops", "10%", "--data", "nowhere")
        assert refused.code == 2 and "data directory 'nowhere' does not exist" in refused.err
    refused = ranp("prune", SMALL, *INPUT, "--flops", "10%", "--data", "tests")
    assert refused.code == 2 and "batches, got the directory 'tests'" in refused.err


def test_a_shape_may_lack_its_batch(ranp):
    whole = ranp("profile", SMALL, *INPUT, "--json")
    sample = ranp("profile", SMALL, "--input", "1,8,8,8", "--json")
    assert sample.json == whole.json and sample.json["input"] == [1, 1, 8, 8, 8]


@pytest.mark.parametrize("place", ["/proc/nowhere/plan", "/dev/null/plan"])
def test_a_directory_that_cannot_be_written_to_is_usage(ranp, place):
    refused = ranp("prune", SMALL, *INPUT, *DATA, "--flops", "50%", "--out", place)
    assert refused.code == 2 and refused.err.count("\n") == 1


def test_a_plan_made_in_python_asks_for_its_network(ranp, tmp_path):
    made = library.prune(
        factories.small(), factories.batches(), nn.functional.cross_entropy, params="50%"
    )
    made.save(tmp_path)
    refused = ranp("bench", tmp_path / "plan.json")
    assert refused.code == 2 and "--network package.module:factory" in refused.err


def test_messages_name_options(ranp, tmp_path, caplog):
    """Where Python is told floor='auto', a command is told --floor auto."""
    scored = ("prune", "tests.cli.factories:ten_neurons", *INPUT, *DATA, "--out", tmp_path)
    thin = ranp(*scored, "--sparsity", "0.5", "--json")
    said = "keeps a single channel; prune less, or give --floor auto"
    assert thin.code == 0 and said in thin.json["warnings"][0] and said in caplog.text
    assert said in (tmp_path / "report.html").read_text(encoding="utf-8")
    refused = ranp(*scored, "--flops", "15%")
    assert refused.code == 3 and refused.err.rstrip().endswith("; --floor 1 would")
    assert name_settings(coupling="mean", floor="auto") == "coupling='mean', floor='auto'"
    with settings_as_options():
        assert name_settings(coupling="mean", floor="auto") == "--coupling mean --floor auto"
        assert name_settings(protect=["a.0", "b"]) == "--protect a.0 --protect b"


@pytest.mark.parametrize("command", ["profile", "inspect"])
def test_a_loader_tells_the_input_and_goes_on_to_the_next_command(ranp, command):
    shown = ranp(command, SMALL, *DATA, "--json")
    assert shown.json == ranp(command, SMALL, *INPUT, "--json").json
    (hint,) = [line for line in shown.err.splitlines() if line.startswith("Next: ranp ")]
    assert hint == f"Next: ranp prune {SMALL} --flops 10% {' '.join(DATA)}"


@pytest.mark.parametrize(
    "command",
    [
        ("prune", "--method", "thin", "--memory", "80%"),
        ("fit", "--method", "thin", "--memory", "80%", "--batch", 1),
        ("prune", "--sparsity", "0.5", "--data", "tests.cli.factories:batches"),
        ("score", "--data", "tests.cli.factories:batches"),
        ("search", "--method", "layerwise"),
        ("profile",),
        ("inspect",),
    ],
)
def test_an_interruption_is_one_line_and_leaves_no_file(ranp, tmp_path, command):
    name, *options = command
    out = ("--out", tmp_path / "out") if name in ("prune", "fit", "score") else ()
    interrupted = ranp(
        name, "tests.cli.factories:Interrupting", "--input", "1,1,8,8,8", *options, *out
    )
    assert interrupted.code == 130
    assert interrupted.out == ""
    assert interrupted.err.splitlines()[-1] == "ranp: interrupted"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


SWALLOWING = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("swallowed")
"""


@pytest.mark.parametrize(("before", "code"), [("", 130), ("sys.modules['torch'] = sys", 0)])
def test_an_interruption_of_the_start_is_not_swallowed_by_an_import(tmp_path, before, code):
    (tmp_path / "swallowing.py").write_text(SWALLOWING)
    start = "from ranp.signals import end_while_starting; end_while_starting()"
    program = f"import sys\n{before}\n{start}\nimport swallowing"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == code
    assert (done.stdout, done.stderr) == (
        ("", "ranp: interrupted\n") if code else ("swallowed\n", "")
    )
