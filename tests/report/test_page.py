"""Reports from stored records: what they are made from, and what they refuse."""

from __future__ import annotations

import html
import json
import math
import re
import subprocess
import sys
import time
from itertools import pairwise

import pytest
import torch
from torch import nn

import ranp
from ranp.errors import IntegrityError, UsageError
from ranp.files import write_sealed_json
from ranp.graph import build_graph
from ranp.models import find_network
from ranp.pipeline import make_plan
from ranp.pruning import Choice, Chooser
from ranp.recording import make_record, write_record
from ranp.recording.blocks import group_layers
from ranp.recording.explorer import PAPER, explorable
from ranp.report.page import write_report
from ranp.report.runs import load_run
from tests.report.networks import make_chooser, random_scores, record_of


@pytest.fixture(scope="module")
def chooser():
    return make_chooser("unet")


def text_of(page):
    """What a reader sees."""
    page = re.sub(r"<(script|style).*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.S)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_it_is_made_without_torch_and_names_the_totals(chooser, tmp_path):
    record = record_of(chooser, command="ranp prune net --sparsity 0.4")
    write_record(tmp_path, record)
    program = (
        "import sys\nfrom ranp.report.page import write_report\n"
        "print(write_report(sys.argv[1]))\n"
        "assert not {'torch', 'numpy', 'ranp.pruning', 'ranp.graph'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "report.html")
    shown = text_of(tmp_path / "report.html")
    for totals in record["totals"].values():
        assert f"{totals['neurons']:,}" in shown
        assert f"{totals['param_mb']:.3f}" in shown
    assert "ranp prune net --sparsity 0.4" in shown
    assert record["fingerprint"] in shown
    assert all(layer["name"] in shown for layer in record["layers"])


def test_nothing_is_fetched_and_only_its_own_scripts_may_run(chooser, tmp_path):
    write_record(tmp_path, record_of(chooser))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    addresses = re.findall(r"""(?:src|href|action|url)\s*[=(]\s*["']?([^"')\s>]+)""", page)
    assert set(addresses) <= {"data:,", "#hatch", "${CSS.escape(head.dataset.stage"}
    assert "default-src 'none'" in page.replace("&#39;", "'")
    assert page.count("sha256-") == 2


def test_a_plan_alone_gives_what_it_knows(chooser, tmp_path):
    plan = make_plan(chooser, 0.4, network="net")
    plan.save(tmp_path / "plan.json")
    out = write_report(tmp_path / "plan.json", tmp_path / "elsewhere" / "page.html")
    shown = text_of(out)
    assert "Neurons" in shown and "Importance" not in shown and "The network" not in shown
    for name, layer in plan.layers.items():
        assert f"{name} {len(layer.kept)} {layer.neurons}" in shown


def test_a_plan_beside_its_own_record_brings_the_record(chooser, tmp_path):
    write_record(tmp_path, record_of(chooser, 0.4))
    make_plan(chooser, 0.4, network="net").save(tmp_path / "plan.json")
    make_plan(chooser, 0.3, network="net").save(tmp_path / "other.json")
    assert "explorer" in (load_run(tmp_path / "plan.json").pruning or {})
    assert "explorer" not in (load_run(tmp_path / "other.json").pruning or {})


def test_a_training_run_shows_its_metrics_and_curve(chooser, tmp_path):
    write_record(tmp_path, record_of(chooser))
    speed = {"loss": 0.4, "lr": 0.1, "seconds": 1.25, "samples_per_second": 8.0}
    epochs = [{"epoch": e, "metrics": {"miou": 0.5 + 0.01 * e}, **speed} for e in range(1, 11)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in epochs))
    training = {
        "schema": 1,
        "kind": "record",
        "goal": "miou",
        "recipe": "shapenet",
        "metrics": {"miou": {"mean": 0.58, "std": math.sqrt(0.00025), "last": 0.6}},
        "epochs": 10,
        "seconds": 12.5,
        "seed": 7,
        "full": None,
        "slim": None,
    }
    write_sealed_json(tmp_path / "record.json", training)
    page = write_report(tmp_path)
    shown = text_of(page)
    assert "0.5800 ± 0.0158" in shown
    assert 'class="line s1" d="M0.0' in page.read_text(encoding="utf-8")
    (tmp_path / "pruning.json").unlink()
    assert "0.5800 ± 0.0158" in text_of(write_report(tmp_path))


def test_the_slider_follows_a_method_that_ranks_no_neurons(tmp_path):
    record = record_of(make_chooser("unet", "flat"))
    assert list(record["explorer"]["methods"]) == ["flat", *PAPER]
    assert "quantiles" not in record["explorer"]["methods"]["flat"]
    write_record(tmp_path, record)
    assert "method flat" in text_of(write_report(tmp_path))


def test_a_plan_without_a_sparsity_leaves_the_slider_to_the_methods(chooser, tmp_path):
    record = record_of(chooser)
    del record["settings"]["sparsity"]
    write_record(tmp_path, record)
    assert "which ranp-f made without a sparsity" in text_of(write_report(tmp_path))


def test_a_record_of_the_version_before_has_all_but_the_slider(chooser, tmp_path):
    record = record_of(chooser)
    del record["blocks"]
    write_record(tmp_path, record | {"explorer": {"methods": {"ranp-f": {}}}})
    page = write_report(tmp_path)
    shown = text_of(page)
    assert "prune again to get the slider" in shown and 'id="page-data"' not in page.read_text(
        encoding="utf-8"
    )
    assert "The network" in shown and "Layer by layer" in shown and "Importance" not in shown


def test_layers_are_grouped_by_the_deepest_modules_that_are_few():
    names = [f"stage{i}.block{j}.conv{k}" for i in range(2) for j in range(3) for k in range(4)]
    assert group_layers(names, 24) == [(name, 1) for name in names]
    blocks = group_layers(names, 8)
    assert blocks[0] == ("stage0.block0.conv0 … stage0.block0.conv3", 4)
    assert [size for _, size in blocks] == [4] * 6
    assert [size for _, size in group_layers(names, 5)] == [6] * 4
    assert [n for _, n in group_layers([str(i) for i in range(2000)], 128)] == [16] * 125


@pytest.mark.parametrize(
    ("depth", "width"), [pytest.param(2000, 8, marks=pytest.mark.slow), (100, 1000)]
)
def test_row_44_deep_and_wide_networks_are_saved_small(tmp_path, depth, width, capsys):
    """2,000 layers, and 100,000 neurons: the page says less."""
    widths = [1, *[width] * depth]
    with torch.device("meta"):
        model = nn.Sequential(
            *(nn.Conv1d(i, o, 1) for i, o in pairwise(widths)), nn.Conv1d(width, 2, 1)
        )
    graph = build_graph(model, (1, 1, 1))
    chooser = Chooser(model, graph, Choice.make("ranp-f"), random_scores(graph))
    plan = make_plan(chooser, 0.02)
    began = time.perf_counter()
    write_record(tmp_path, make_record(chooser, plan))
    page = write_report(tmp_path)
    with capsys.disabled():
        print(f" saved in {time.perf_counter() - began:.1f} s", end="")
    assert page.stat().st_size <= 1_500_000
    record = load_run(tmp_path).pruning
    assert len(record["layers"]) == depth + 1 and len(record["blocks"]) <= 128
    shown = text_of(page)
    assert all(f" {layer['name']} 1 {width:,} " in shown for layer in record["layers"][1:-1:97])


def test_the_slider_offers_what_the_scores_allow():
    assert next(iter(explorable(make_chooser("unet", "ranp-m")))) == "ranp-m"
    without = make_chooser("unet", "layerwise")
    object.__setattr__(without, "scores", None)
    assert set(explorable(without)) == {"layerwise", "random"}


def test_the_page_of_a_fit_says_first_what_the_terminal_says(tmp_path):
    model = nn.Sequential(nn.Conv3d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 2, 1))
    fitted = ranp.fit(model, memory="60%", batch=2, input=(1, 8, 8, 8), method="layerwise")
    fitted.save(tmp_path)
    shown = text_of(write_report(tmp_path))
    (memory,) = (row for row in fitted.rows() if row["budget"])
    head, _, rest = shown.partition("Memory of a training step")
    assert "batch 2" in head and "input 1 × 8 × 8 × 8" in head and "optimizer adam" in head
    assert rest.startswith(f" {memory['slim']} from {memory['full']}")
    assert f"budget {memory['budget']}" in rest and fitted.verdict in shown
    assert shown.index("Memory of a training step") < shown.index("Operations")
    answers = shown[: shown.index("The network")]
    assert "Activation memory" not in answers
    terminal = str(fitted)
    assert all(memory[key] in terminal for key in ("full", "slim", "budget"))


def test_the_page_repeats_what_was_warned_of(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 4, 1))
    loader = [(torch.rand(1, 1, 8, 8, 8), torch.randint(4, (1, 8, 8, 8)))]
    thin = ranp.prune(model, loader, nn.functional.cross_entropy, sparsity=8 / 12)
    assert [len(layer.kept) for layer in thin.plan.layers.values()] == [1, 4]
    thin.save(tmp_path)
    shown = html.unescape(text_of(write_report(tmp_path)))
    assert "layer '0' keeps a single channel; prune less, or give floor='auto'" in shown
    assert "the last layer '2' has 4 classes and reads 1 of 8 channels" in shown


def test_errors_name_the_way_out(chooser, tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        write_report(tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"holds no pruning\.json.*ranp prune"):
        write_report(tmp_path)
    path = write_record(tmp_path, record_of(chooser))
    path.write_text(path.read_text().replace('"lambda": 11', '"lambda": 12'))
    with pytest.raises(IntegrityError, match="was changed"):
        write_report(tmp_path)
    write_sealed_json(path, {"kind": "pruning", "schema": 99})
    with pytest.raises(IntegrityError, match="schema 99"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("network", "neurons"),
    [
        ("unet3d-23-shapenet", 9042),
        pytest.param("i3d-ucf101", 7381, marks=pytest.mark.slow),
    ],
)
def test_pages_of_the_papers_networks_are_below_a_megabyte(tmp_path, network, neurons):
    spec = find_network(network)
    with torch.device("meta"):
        model = spec.build()
    graph = build_graph(model, spec.input_shape)
    assert graph.neurons == neurons
    chooser = Chooser(model, graph, Choice.make("ranp-f", lam=spec.lam), random_scores(graph))
    write_record(tmp_path, make_record(chooser, make_plan(chooser, 0.5)))
    assert write_report(tmp_path).stat().st_size <= 1_000_000
