"""Slim plans and their network without nnU-Net: a small U-Net stands for its own."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from ranp.cli import app
from ranp.errors import IntegrityError, UsageError
from ranp.graph import build_graph
from ranp.integrations.nnunet import prune_plans, read_slim_plans, slim_network
from ranp.integrations.nnunet.network import set_deep_supervision
from ranp.integrations.nnunet.plans import (
    FACTORY,
    SlimConfiguration,
    check_configuration,
    dataset_folder,
    read_plans,
    refuse_trained_plans,
    slim_configuration,
    write_slim_plans,
)
from ranp.slimming import Plan
from tests.oracle import Reference, random_alive

PATCH = (8, 8, 8)
CLASS = f"{__name__}.SmallUNet"


class Decoder(nn.Module):
    def __init__(self, widths, num_classes, deep_supervision):
        super().__init__()
        self.deep_supervision = deep_supervision
        self.up = nn.ConvTranspose3d(widths[1], widths[0], 2, 2)
        self.stage = nn.Conv3d(2 * widths[0], widths[0], 3, padding=1)
        self.seg_layers = nn.ModuleList([nn.Conv3d(w, num_classes, 1) for w in widths[::-1]])

    def forward(self, skips):
        x = self.stage(torch.cat([self.up(skips[1]), skips[0]], 1)).relu()
        whole = self.seg_layers[1](x)
        return [whole, self.seg_layers[0](skips[1])] if self.deep_supervision else whole


class SmallUNet(nn.Module):
    """Built as nnU-Net builds its networks."""

    def __init__(self, input_channels, num_classes, widths, strides, deep_supervision=False):
        super().__init__()
        self.first = nn.Conv3d(input_channels, widths[0], 3, strides[0], 1)
        self.second = nn.Conv3d(widths[0], widths[1], 3, strides[1], 1)
        self.decoder = Decoder(widths, num_classes, deep_supervision)

    def forward(self, x):
        first = self.first(x).relu()
        return self.decoder([first, self.second(first).relu()])


KWARGS = {"widths": [8, 12], "strides": [1, 2]}


def full():
    torch.manual_seed(0)
    return SmallUNet(1, 3, **KWARGS, deep_supervision=True)


@pytest.fixture(scope="module")
def plan():
    graph = build_graph(full(), (1, 1, *PATCH))
    return Plan.make(
        graph,
        random_alive(graph, 0.5),
        method="random",
        settings={"sparsity": 0.5},
        costs={
            name: {"gflops": g, "param_mb": 0.01, "memory_mb": 2.0, "neurons": neurons}
            for name, g, neurons in (("full", 2.0, 42), ("slim", 0.5, 24))
        },
    )


@pytest.fixture
def about(plan):
    return SlimConfiguration(
        network_class_name=CLASS,
        plan=plan.to_dict(),
        source="nnUNetPlans",
        command="ranp nnunet prune 7 3d_fullres --flops 10%",
        training={"batch": 2, "input": [1, *PATCH], "precision": "16", "device": "cuda"},
        memory={"full": 8 * 2**30, "slim": 2 * 2**30},
        nnunet_estimate={"full": 7.5, "slim": 2.25},
        instead={"patch_size": [4, 4, 4], "batch_size": 2, "estimate": 2.5},
    )


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A preprocessed dataset as nnU-Net leaves it, but for its images."""
    folder = tmp_path / "Dataset007_Cells"
    (folder / "nnUNetPlans_3d_fullres").mkdir(parents=True)
    architecture = {
        "network_class_name": CLASS,
        "arch_kwargs": KWARGS,
        "_kw_requires_import": [],
    }
    fullres = {
        "data_identifier": "nnUNetPlans_3d_fullres",
        "patch_size": list(PATCH),
        "batch_size": 2,
        "architecture": architecture,
    }
    plans = {
        "dataset_name": folder.name,
        "plans_name": "nnUNetPlans",
        "configurations": {
            "2d": {**fullres, "data_identifier": "nnUNetPlans_2d"},
            "3d_fullres": fullres,
            "3d_lowres": {**fullres, "next_stage": "3d_cascade_fullres"},
            "3d_cascade_fullres": {"inherits_from": "3d_fullres", "previous_stage": "3d_lowres"},
        },
    }
    (folder / "nnUNetPlans.json").write_text(json.dumps(plans))
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path))
    return folder


def slim_plans(dataset, about, configuration="3d_fullres"):
    source = read_plans(dataset / "nnUNetPlans.json")
    path = dataset / "nnUNetPlans_ranp.json"
    made = slim_configuration(source["configurations"][configuration], about)
    write_slim_plans(path, source, configuration, made)
    return path


@pytest.mark.parametrize("deep_supervision", [True, False])
def test_the_network_of_slim_plans_is_the_masked_one(dataset, about, plan, deep_supervision):
    stored = json.loads(slim_plans(dataset, about).read_text())["configurations"]["3d_fullres"]
    assert stored["architecture"]["network_class_name"] == FACTORY
    kwargs = stored["architecture"]["arch_kwargs"]
    assert kwargs["strides"] == KWARGS["strides"]  # nnU-Net's trainer reads them there
    built = slim_network(
        input_channels=1, num_classes=3, **kwargs, deep_supervision=deep_supervision
    )
    model = full().double()
    graph = build_graph(model, (1, 1, *PATCH))
    slim = plan.apply(model, init="keep", graph=graph)
    built.double().load_state_dict(slim.state_dict())
    model.decoder.deep_supervision = deep_supervision
    x = torch.randn(1, 1, *PATCH, dtype=torch.float64)
    found = Reference(model, graph, plan.alive(graph), (x,)).compare(built)
    assert found.error <= 1e-10 and found.effect > 1e-3


def test_weights_are_the_full_networks_own_initialization(about, plan):
    """nnU-Net initializes after building; what it leaves alone is as the full class made it."""
    torch.manual_seed(0)
    built = slim_network(input_channels=1, num_classes=3, ranp=vars(about), **KWARGS)
    kept = list(plan.layers["first"].kept)
    assert torch.equal(built.first.weight, full().first.weight[kept])


def test_another_dataset_refuses_the_network(about):
    with pytest.raises(IntegrityError, match=r"'first.weight' is"):
        slim_network(input_channels=2, num_classes=3, ranp=vars(about), **KWARGS)


def test_networks_that_nnunet_cannot_switch():
    with pytest.raises(IntegrityError, match=r"Conv3d has no 'decoder.deep_supervision'"):
        set_deep_supervision(nn.Conv3d(1, 1, 1), True)


def test_networks_that_are_not_installed(about):
    with pytest.raises(UsageError, match=r"'nowhere.Net' cannot be imported"):
        slim_network(
            input_channels=1,
            num_classes=3,
            ranp={**vars(about), "network_class_name": "nowhere.Net"},
        )


def test_nothing_but_networks_is_called(about, tmp_path):
    """Plans come from others; a name in them must not run what it likes."""
    with pytest.raises(IntegrityError, match=r"'os.mkdir' must be a class of networks"):
        slim_network(
            input_channels=1,
            num_classes=3,
            ranp={**vars(about), "network_class_name": "os.mkdir"},
            path=str(tmp_path / "made"),
        )
    assert not (tmp_path / "made").exists()


def test_everything_else_in_the_plans_stays(dataset, about):
    before = (dataset / "nnUNetPlans.json").read_bytes()
    plans = json.loads(slim_plans(dataset, about).read_text())
    assert (dataset / "nnUNetPlans.json").read_bytes() == before
    source = json.loads(before)
    assert plans["plans_name"] == "nnUNetPlans_ranp"
    assert set(plans["configurations"]) == {"3d_fullres"}  # full ones would mislead
    found, wanted = plans["configurations"]["3d_fullres"], source["configurations"]["3d_fullres"]
    assert {**found, "architecture": None} == {**wanted, "architecture": None}
    # A second configuration is added; a first stage loses the second, which is not there.
    plans = json.loads(slim_plans(dataset, about, "3d_lowres").read_text())
    assert set(plans["configurations"]) == {"3d_fullres", "3d_lowres"}
    assert "next_stage" not in plans["configurations"]["3d_lowres"]


def test_nnunets_own_plans_are_never_written_over(dataset, about):
    source = read_plans(dataset / "nnUNetPlans.json")
    with pytest.raises(UsageError, match="holds nnU-Net's own plans"):
        write_slim_plans(dataset / "nnUNetPlans.json", source, "3d_fullres", {})
    with pytest.raises(UsageError, match="cannot be called 'nnUNetPlans'"):
        prune_plans(7, "3d_fullres", sparsity=0.5, out_plans="nnUNetPlans")


def test_plans_that_were_trained_are_never_written_over(dataset, tmp_path, monkeypatch):
    run = tmp_path / "results/Dataset007_Cells/nnUNetTrainer__nnUNetPlans_ranp__3d_fullres"
    (run / "fold_0").mkdir(parents=True)
    (run / "fold_0/checkpoint_best.pth").touch()
    monkeypatch.setenv("nnUNet_results", str(tmp_path / "results"))
    with pytest.raises(UsageError, match=r"'nnUNetPlans_ranp': '.*3d_fullres' was trained with"):
        prune_plans(7, "3d_fullres", sparsity=0.5)
    refuse_trained_plans(dataset.name, "nnUNetPlans_other", "3d_fullres")
    refuse_trained_plans(dataset.name, "nnUNetPlans_ranp", "3d_lowres")


@pytest.mark.parametrize("name", [7, "7", "007", "Dataset007_Cells"])
def test_datasets_are_found_by_number_and_name(dataset, name):
    assert dataset_folder(name) == dataset


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["8", "3d_fullres"], 2, "no preprocessed dataset has the number or name '8'"),
        (["7", "3d_fulres"], 2, "no configuration '3d_fulres'. Did you mean '3d_fullres'?"),
        (["7", "3d_fullres", "-p", "nnUNetPlan"], 2, "Did you mean 'nnUNetPlans'?"),
        (["7", "3d_fullres", "-p", "broken"], 4, "is not a plans file of nnU-Net v2"),
        (["7", "3d_fullres", "-p", "other"], 4, "it has no configurations, dataset_name"),
        (["7", "2d"], 4, "nnUNetPlans_2d' is missing; run nnUNetv2_preprocess -d 007"),
        (["7", "3d_cascade_fullres"], 2, "cascades cannot be pruned"),
        (["7", "3d_fullres", "-p", "nnUNetPlans_ranp"], 2, "is pruned already"),
        (["7", "3d_fullres", "--fold", "x"], 2, "fold must be a number or 'all', got 'x'"),
    ],
)
def test_what_cannot_be_pruned_is_said_in_one_line(dataset, about, arguments, code, says):
    (dataset / "broken.json").write_text("[]")
    (dataset / "other.json").write_text('{"plans_name": "other", "configurations": []}')
    slim_plans(dataset, about)
    result = CliRunner().invoke(app, ["nnunet", "prune", *arguments, "--sparsity", "0.5"])
    assert getattr(result.exception, "exit_code", None) == code
    assert says in str(result.exception) and "\n" not in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--method", "race", "--sparsity", "0.5"], "a race is between networks of one cost"),
        (["--method", "race", "--flops", "10%", "--params", "5%"], "between networks of one cost"),
        (["--flops", "10%", "--epochs", "5"], "epochs is for method 'race', got method 'ranp-f'"),
        (["--flops", "10%", "--candidates", "thin"], "candidates is for method 'race'"),
        (["--flops", "a tenth"], "must be an amount such as 20GFLOPs or 50%, got 'a tenth'"),
        (["--sparsity", "2"], "got 2.0"),
        (["--flops", "10%", "--method", "rnp-f"], "Did you mean 'ranp-f'?"),
        (["--flops", "10%", "--floor", "-3"], "got -3"),
        (
            ["--method", "race", "--flops", "10%", "--candidates", "thin,ranpf"],
            "Did you mean 'ranp-f'?",
        ),
        (
            ["--method", "race", "--flops", "10%", "--cost", "0"],
            "must be a share of the training that follows, such as 0.05, 5% or 400%, got '0'",
        ),
    ],
)
def test_what_cannot_be_pruned_is_refused_at_once(dataset, arguments, says):
    result = CliRunner().invoke(app, ["nnunet", "prune", "7", "3d_fullres", *arguments])
    assert getattr(result.exception, "exit_code", None) == 2
    assert says in str(result.exception) and "\n" not in str(result.exception)


def test_without_preprocessed_data(monkeypatch, tmp_path):
    monkeypatch.delenv("nnUNet_preprocessed", raising=False)
    with pytest.raises(UsageError, match="nnUNet_preprocessed is not set"):
        dataset_folder(7)
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="which is not a folder"):
        dataset_folder(7)


@pytest.mark.parametrize("budgets", [{}, {"sparsity": 0.5, "flops": "10%"}])
def test_either_a_sparsity_or_budgets(dataset, budgets):
    with pytest.raises(UsageError, match="give either a sparsity or budgets"):
        prune_plans(7, "3d_fullres", **budgets)


def test_what_a_configuration_inherits_counts(dataset, about):
    plans = read_plans(dataset / "nnUNetPlans.json")
    added = {
        "large_batch": {"inherits_from": "3d_fullres", "batch_size": 4},
        "second_stage": {"inherits_from": "3d_cascade_fullres"},
        "circle": {"inherits_from": "circle"},
    }
    plans["configurations"] |= added
    check_configuration(plans, "large_batch", dataset)
    with pytest.raises(UsageError, match="second stage of a cascade"):
        check_configuration(plans, "second_stage", dataset)
    with pytest.raises(IntegrityError, match="is missing"):
        check_configuration(plans, "circle", dataset)
    slim = read_plans(slim_plans(dataset, about))
    slim["configurations"] |= added
    with pytest.raises(UsageError, match="is pruned already"):
        check_configuration(slim, "large_batch", dataset)


def test_show_prints_full_against_slim(dataset, about):
    path = slim_plans(dataset, about)
    assert read_slim_plans(path) == {"3d_fullres": about}
    shown = CliRunner().invoke(app, ["nnunet", "show", str(path)])
    assert shown.exit_code == 0
    assert "8.00  2.00   25.0 %" in shown.stdout
    assert "7.50  2.25   30.0 %" in shown.stdout
    assert "would plan a patch of 4x4x4 and a batch of 2 (its estimate: 2.50 GB)" in shown.stdout
    as_json = json.loads(CliRunner().invoke(app, ["nnunet", "show", str(path), "--json"]).stdout)
    assert as_json["3d_fullres"]["costs"]["slim"]["gflops"] == 0.5
    assert as_json["3d_fullres"]["predicted_peak_bytes"] == about.memory


def test_show_refuses_plans_without_slim_networks(dataset, about):
    with pytest.raises(UsageError, match="holds no slim network; make one"):
        read_slim_plans(dataset / "nnUNetPlans.json")
    path = slim_plans(dataset, about)
    plans = json.loads(path.read_text())
    entry = plans["configurations"]["3d_fullres"]["architecture"]["arch_kwargs"]["ranp"]
    del entry["memory"]
    path.write_text(json.dumps(plans))
    with pytest.raises(IntegrityError, match="was changed after it was written"):
        read_slim_plans(path)
    del entry["sha256"]  # as an earlier version wrote it
    path.write_text(json.dumps(plans))
    with pytest.raises(IntegrityError, match="field 'memory'"):
        read_slim_plans(path)
    path.write_text("{")
    with pytest.raises(IntegrityError, match="is not valid JSON"):
        read_slim_plans(path)


def test_plans_that_do_not_exist_say_what_writes_them(tmp_path):
    with pytest.raises(
        UsageError, match=r"do not exist\. .*plan_and_preprocess.* `ranp nnunet prune"
    ):
        read_plans(tmp_path / "4")


def test_several_datasets_of_one_number_are_told_apart_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path))
    for name in ("Dataset004_Hippocampus", "Dataset004_Again"):
        (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match=r"several datasets have .* give the whole name"):
        dataset_folder(4)
